"""Coding agents as proposers: any program that edits a folder, held by a sandbox and a time limit.

An agent works in a git worktree of its own that holds the parent's sources and a task file. What it
says of its work counts nothing: a candidate is what lies in its tree, and its score is what the
search's own evaluation finds.
"""
