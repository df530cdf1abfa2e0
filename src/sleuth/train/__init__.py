"""Reinforcement learning: rollouts, advantages, the policy loss, optimiser steps and checkpoints."""
