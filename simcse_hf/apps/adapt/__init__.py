"""Adapt a sentence encoder to unlabelled text within a time budget, and say whether it helped."""
