"""Make a found probe as small and plain as it can be while the gap holds.

In the manner of delta debugging (Zeller and Hildebrandt, 2002) and of Hypothesis: many small edits
of the program, each kept only if what comes out still fails; here a failure is a gap on fresh
examples, and the last word has an admission test.
"""
