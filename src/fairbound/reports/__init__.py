"""How results are laid out: one table, words, figures, one page.

Numbers and decisions come from metrics/, auditing/ and benchmark/; nothing else knows about width,
color or tags.
"""
