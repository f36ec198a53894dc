"""Checks of the exercises, a file for each lesson. Each is a slow spec of its own."""
