"""The run store: one folder a run, with plain files for people and one SQLite file for the rest."""
