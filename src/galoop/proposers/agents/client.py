"""``gal-evaluate``: how an agent asks for the evaluation of what lies in its worktree.

Standard library only: the file is copied beside an agent's worktree and run there. It sends no
program and no score; the trusted process reads the worktree itself.
"""

import argparse
import json
import socket
import sys

# What the exit codes mean to a shell script.
SCORED, REJECTED, NOT_EVALUATED = 0, 1, 3


def main(arguments: list[str] | None = None) -> int:
    """Ask, print the answer as JSON, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="gal-evaluate",
        description="Evaluate the worktree on the primary set. Exit codes: 0 scored, 1 rejected "
        "(invalid or failed), 3 not evaluated (no evaluations left, or the search is over).",
    )
    parser.add_argument("--socket", required=True, help=argparse.SUPPRESS)
    parser.add_argument("-m", "--note", default="", help="one line: what was changed")
    parser.add_argument(
        "--suites", action="store_true", help="also look at the regression suites (slow)"
    )
    parser.add_argument(
        "--list", action="store_true", help="evaluate nothing; list what was evaluated"
    )
    given = parser.parse_args(arguments)
    request = {"do": "list" if given.list else "evaluate", "note": given.note}
    request["suites"] = given.suites
    try:
        answer = ask(given.socket, request)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gal-evaluate: no answer ({error}); the session is over\n")
        return NOT_EVALUATED
    sys.stdout.write(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
    state = answer.get("state")
    if state == "scored" or given.list:
        return SCORED
    return NOT_EVALUATED if state in ("not evaluated", None) else REJECTED


def ask(path: str, request: dict[str, object]) -> dict[str, object]:
    """Send one request; wait for its answer, however long it takes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(request).encode("utf-8") + b"\n")
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    answer = json.loads(data)
    if not isinstance(answer, dict):
        raise ValueError("not an answer")
    return answer


if __name__ == "__main__":
    sys.exit(main())
