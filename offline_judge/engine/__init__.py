"""Asks, the rounds that answer them, and the store that keeps the answers."""
