"""Draft heads that guess where there are no streams: EAGLE-3's."""
