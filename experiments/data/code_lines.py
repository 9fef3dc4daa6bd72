"""Lines of a text that look like code: Python, and what resembles it. Transparent, and rough.

A line of code without any of the marks below counts as prose.
"""

from __future__ import annotations

import re

_CODE_LINE = re.compile(
    r"""\s*(?:>>>|\.\.\.(?:\s|$)|@\w|\#\s|[\w"|]+\s*::?=)      # prompts, decorators, comments, grammar rules
    |\s+(?:def|class|import|from|return|raise|assert|del|pass|break|continue|yield|with|while|if|elif|else|for
        |try|except|finally|lambda|print)\b.*[:()=]            # an indented statement
    |(?:def|class|async\ def)\s+\w+.*:\s*$
    |.*(?:\w\s=\s\S|==|!=|->|\+=|\):\s*$|\w\[\w)               # operators that prose lacks
    |\s+[\w.]+\([^)]*\)\s*$                                    # a line that is only a call""",
    flags=re.VERBOSE,
)


def is_code(line: str) -> bool:
    """Return True for a line that looks like code."""
    return _CODE_LINE.match(line) is not None
