"""Tells people and their tools: experiments and incidents in, messages out, each state once."""
