from specstream_mlx.cli.chart import chart


def test_a_column_is_as_high_as_its_value():
    points = [(0, 1.0), (10, 2.0), (20, 3.0)]
    assert chart("loss", points, width=4, height=2) == [
        "loss",
        "3.00   ▁█",
        "1.00 ▁▁██",
        "     0 20",
    ]
    assert chart("loss", [(0, 0.0), (9, 1.0)], width=4, height=2)[2] == "0.00 ▁▁▁█"
    assert chart("loss", [(0, 2.5), (8, 2.5)], width=2, height=2)[1:3] == ["", "2.50 ▁▁"]
