"""Doctor looks at the machine and at the engine on it, and says what to mend."""
