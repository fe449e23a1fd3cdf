"""Docstrings: prose is kept word for word, all else is left out, and nothing is imported."""

from __future__ import annotations

import inspect

from bert_jax.reports.quickstart import docstrings

NUMPY_STYLE = """
    Return the circular mean of the samples along an axis.

    The mean is taken on the unit circle, see :func:`numpy.angle` and the
    `user guide <https://example.org/guide>`_ for what that means [1]_.

    Parameters
    ----------
    samples : array_like, optional
        The angles in radians, of any shape at all.
    axis : int
        Axis along which the means are computed. The default is the
        flattened array.

    Returns
    -------
    ndarray
        The mean angle of every row given.

    See Also
    --------
    other_function : Does something else with the samples given.

    Examples
    --------
    >>> circular_mean([0.1, 6.2])
    0.008
    We can also compute it for a whole table of angles.

    The following example shows the use of weights::

        circular_mean(x, weights=this is code and not prose at all)

    References
    ----------
    .. [1] N. Author, "A long book about circular statistics", 1999.
    """

GOOGLE_STYLE = """Converts each of the values to a tensor of tensors.

    Args:
      values: A list of numbers that can be converted to one type.
        They must all have the same shape.
      name (str, *optional*): An optional name for the operation.

    Returns:
      A `Tensor` of the same type as tf.Tensor has in every other case.

    ```python
    values = convert the values that are given here
    ```

    .. versionadded:: 2.0 this was not here before that version

    .. note:: Look at the shape before you convert the values.

    | a table | has | cells | of | words |
    Visit https://example.org/a/page for a long list of values.
    """


def test_numpy_style():
    assert docstrings.extract_sentences(inspect.cleandoc(NUMPY_STYLE)) == [
        'Return the circular mean of the samples along an axis.',
        (
            'The mean is taken on the unit circle, see numpy.angle and the user guide for what that'
            ' means.'
        ),
        'The angles in radians, of any shape at all.',
        'Axis along which the means are computed.',
        'The default is the flattened array.',
        'The mean angle of every row given.',
        'The following example shows the use of weights:',
    ]


def test_google_style():
    assert docstrings.extract_sentences(inspect.cleandoc(GOOGLE_STYLE)) == [
        'Converts each of the values to a tensor of tensors.',
        'A list of numbers that can be converted to one type.',
        'They must all have the same shape.',
        'An optional name for the operation.',
        'A Tensor of the same type as Tensor has in every other case.',
        'Look at the shape before you convert the values.',
    ]


def test_modules(tmp_path):
    """A module whose import would fail: definitions of all kinds, and short docstrings."""
    three = 'One thing is said here. Another thing is said here. A third thing is said here.'
    short = 'Only this one is said of {}.'
    source = (
        f'"""{three}"""\nraise SystemExit\nclass A:\n  """{short.format("A")}"""\n  if True:\n   '
        f' def f(self):\n      """{three}"""\n'
    )
    source += ''.join(f'def g{i}():\n  """{short.format("g")}"""\n' for i in range(2))
    (tmp_path / 'good.py').write_text(source)
    (tmp_path / 'broken.py').write_text('def (:')
    documents = docstrings.read_module(('pack/good.py', f'{tmp_path}/good.py'))
    assert [(d.group, len(d.sentences)) for d in documents] == [('pack/good.py', 3)] * 3
    assert documents[2].sentences[0] == 'Only this one is said of A.'
    for name in ('broken', 'missing'):
        assert docstrings.read_module((name, f'{tmp_path}/{name}.py')) == []


def test_what_is_read_is_what_bert_jax_needs():
    """And what that needs in turn, but no extra: it is the same in every environment."""
    names = [distribution.name for distribution in docstrings.find_distributions()]
    assert {'scipy', 'jax', 'jaxlib', 'scikit-learn', 'fonttools'} <= set(names)
    assert not {'bert_jax', 'tensorflow', 'keras', 'pytest', 'mypy', 'pip'} & set(names)
    assert names == sorted(names)


def test_a_distribution_is_read_without_its_tests():
    optax = [d for d in docstrings.find_distributions() if d.name == 'optax']
    documents = list(docstrings.iterate_docstrings(optax))
    groups = {document.group for document in documents}
    assert len(documents) > 100 and all(group.startswith('optax/') for group in groups)
    assert not any('_test' in group for group in groups)
