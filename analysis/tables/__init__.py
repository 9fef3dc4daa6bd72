"""Tables as text, Markdown and LaTeX."""
