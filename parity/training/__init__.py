"""Trainings: many steps of a small model in every backend, in lockstep, and the first step and stage that diverges."""
