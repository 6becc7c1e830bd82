"""Trainings of chapter 25 in processes of their own, which are killed on purpose."""
