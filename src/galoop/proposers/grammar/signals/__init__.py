"""What grammars of programs that combine scored signals share.

A program scores items by one or more signals, each with options and a transform, combines the
scores, pools them over neighbours, and may give the candidate that the search started from a part.
A domain gives its own tables, the moves that are special to it, and the text of its programs.
"""
