import pandas as pd

from archbench.analysis.experts.figures import share_figure


def test_shares_are_written_as_they_round() -> None:
    rows = [("a", expert, share) for expert, share in enumerate((0.0, 0.254, 0.996, 1.0))]
    frame = pd.DataFrame(rows, columns=["kind", "expert", "share"]).assign(layer="blocks.0", chance=0.25)
    [written] = share_figure(frame, "kind").data[0].text
    assert written == [".00", ".25", "1.00", "1.00"]
