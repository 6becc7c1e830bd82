"""Trainings of chapter 11 in processes of their own, which are killed on purpose."""
