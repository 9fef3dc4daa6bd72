from archbench.analysis.load.descriptions import description


def test_a_description_is_the_comment_of_a_yaml() -> None:
    assert description("backbone", "mamba").startswith("Mamba: selective")
    assert description("backbone", "decoder_alibi").startswith("A decoder with a bias by distance")
    assert description("backbone", "nothing") == ""
    assert description("backbone", "../backbone/mamba") == ""
    assert description("task", "text").startswith("Language modelling on text")
