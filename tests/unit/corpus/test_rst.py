"""reStructuredText as plain text."""

from sleuth.corpus.content import Content
from sleuth.corpus.rst import restructured_text

SOURCE = """\
.. _label:

=======
 Guide
=======

.. toctree::
   :maxdepth: 2

   install
   use

The *first* **bold** ``code_`` of :ref:`the guide <label>` and `a page <https://x.org>`_ with :func:`open`
goes on. As follows::

    $ pip install it
      --quiet

Install
-------

.. note:: Mind
   the gap.
   :class: wide

.. code-block:: python
   :linenos:

   def f():
       return 1

.. a comment
   of two lines

   and a paragraph

+------+-------+
| name | size  |
+======+=======+
| a    | one   |
|      | more  |
+------+-------+
| b    | 2     |
+------+-------+

=====  ======
key    value
=====  ======
x      first
       line

y      2
=====  ======

Linux
~~~~~

* an item
  of two lines
* another

----

Use
---
.. [1] A footnote.
"""


def test_sections_directives_and_tables() -> None:
    assert restructured_text(SOURCE) == Content(
        "Guide",
        "\n".join(
            [
                "Guide",
                "The first bold code_ of the guide and a page with open goes on. As follows:",
                "    $ pip install it",
                "      --quiet",
                "Install",
                "Mind the gap.",
                "   def f():",
                "       return 1",
                "name: a; size: one more",
                "name: b; size: 2",
                "key: x; value: first line",
                "key: y; value: 2",
                "Linux",
                "* an item of two lines",
                "* another",
                "Use",
                ".. [1] A footnote.",
            ]
        ),
        headings={0: 1, 4: 2, 12: 3, 15: 2},
    )


def test_text_without_sections() -> None:
    assert restructured_text("Some notes\n\nWords.") == Content("Some notes", "Some notes\nWords.")
    assert restructured_text("=== ===\na   b\n") == Content("a | b", "a | b")
    assert restructured_text("") == Content("", "")
