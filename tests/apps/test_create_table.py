"""Tables as people paste them, in the form that sql's adapter knows."""

import pytest
from specstream_mlx.apps.writing_tools import tools
from specstream_mlx.apps.writing_tools.create_table import as_tables
from specstream_mlx.apps.writing_tools.tools import TOOLS
from specstream_mlx.apps.writing_tools.write import Task

from specstream_mlx import bundled

ORDERS = "table orders(id, customer, amount): Which customers spent more than 500?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE TABLE orders (id INT, customer TEXT, amount REAL);\nWhich customers spent more "
         "than 500?", ORDERS),
        ("create table if not exists orders(\n  id INT PRIMARY KEY, -- its number, (of course)\n"
         "  customer VARCHAR(80) NOT NULL DEFAULT 'a, (b',\n  amount DECIMAL(8, 2)\n)\n\n"
         "Which customers\nspent more than 500?\n", ORDERS),
        ("Which customers spent more than 500?\n\nCREATE TEMPORARY TABLE `orders` (`id` INT, "
         "[customer] TEXT, \"amount\" REAL)", ORDERS),
        ("-- Which customers spent more than 500?\nCREATE TABLE orders (id INT /* a, b */, "
         "customer TEXT, amount REAL CHECK (amount > 0), PRIMARY KEY (id), UNIQUE KEY u (customer),"
         " CONSTRAINT c CHECK (id > 1), INDEX (amount), KEY k (id), FOREIGN KEY (customer) "
         "REFERENCES customers (name)) ENGINE=InnoDB DEFAULT CHARSET=utf8;", ORDERS),
        ("CREATE TABLE t (key VARCHAR(9), period TEXT, index INT) WITHOUT ROWID; how many?",
         "table t(key, period, index): how many?"),
        ("CREATE TABLE [our authors] (`first name` TEXT); how many?",
         'table "our authors"("first name"): how many?'),
        ("CREATE TABLE shop.books (id INT);\nCREATE TABLE \"our authors\" (id INT, \"first name\" "
         "TEXT);\nhow many?",
         'table shop.books(id), table "our authors"(id, "first name"): how many?'),
        ("CREATE TABLE café (größe INT); die größte?", "table café(größe): die größte?"),
        (ORDERS, ORDERS),
        ("how many orders does anna have?\n", "how many orders does anna have?\n"),
        ("CREATE TABLE orders (id INT; which?", "CREATE TABLE orders (id INT; which?"),
        ("CREATE TABLE old AS SELECT 1; which?", "CREATE TABLE old AS SELECT 1; which?"),
    ],
)  # fmt: skip
def test_statements_become_tables(text, expected):
    assert as_tables(text) == expected
    assert (TOOLS["sql"].objection(text) is None) == expected.startswith("table ")


def test_sql_s_adapter_gets_tables_and_the_user_s_own_adapter_the_text(tmp_path):
    text = "CREATE TABLE a (id INT); how many?"
    for path, given in ((bundled.adapter_path("sql"), "table a(id): how many?"), (tmp_path, text)):
        assert [chat.text for chat in Task("sql", path, text).chats] == [given]
        assert tools.read(path, text) == given


def test_a_statement_without_a_question_is_no_text_for_sql():
    assert as_tables("CREATE TABLE a (id INT);\n") == "table a(id):"
    assert TOOLS["sql"].objection("CREATE TABLE a (id INT);\n")
    assert TOOLS["proofread"].read("CREATE TABLE a (id INT); b") == "CREATE TABLE a (id INT); b"
