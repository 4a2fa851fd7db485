"""An agent that edits a real press, on the fast model, measured by our evaluation."""

from __future__ import annotations

from pathlib import Path

import press_loop


@press_loop.needs_fast
def test_a_shell_script_edits_a_real_press(fast_path: Path) -> None:
    program = fast_path / "agent.sh"
    steps = press_loop.commands("gal-evaluate", fast_path / "run")
    said = 'echo \'{"type": "usage", "input_tokens": 50, "output_tokens": 5, "dollars": 0.25}\''
    program.write_text("\n".join([*steps, said]) + "\n")
    made = press_loop.improved(
        fast_path,
        agent__command=("sh", str(program)),
        agent__readable=(str(program),),
        agent__network=False,
        agent__seconds=120.0,
    )
    press_loop.check(made)
    ledger = {row.kind: row for row in made.result.ledger if row.who == "agent:command"}
    assert (ledger["proposal"].dollars, ledger["proposal"].source) == (0.25, "reported")
