"""How good an agent is: questions asked, answers scored, means with intervals, and comparisons in pairs."""
