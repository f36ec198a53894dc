"""Checks of the exercises, a file for each lesson. Each is a slow, independent spec: none calls the code that it stands for."""
