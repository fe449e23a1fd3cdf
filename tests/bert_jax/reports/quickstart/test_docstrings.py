"""Docstrings: prose is kept word for word, all else is left out, and nothing is imported."""

from __future__ import annotations

import pytest

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
    assert docstrings.to_sentences(NUMPY_STYLE) == [
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
    assert docstrings.to_sentences(GOOGLE_STYLE) == [
        'Converts each of the values to a tensor of tensors.',
        'A list of numbers that can be converted to one type.',
        'They must all have the same shape.',
        'An optional name for the operation.',
        'A Tensor of the same type as Tensor has in every other case.',
        'Look at the shape before you convert the values.',
    ]


@pytest.fixture
def package(tmp_path):
    """A package whose import would fail.

    It has a nested definition, short docstrings and a file that does not parse.
    """
    three = 'One thing is said here. Another thing is said here. A third thing is said here.'
    short = 'Only this one is said of {}.'
    source = (
        f'"""{three}"""\nraise SystemExit\nclass A:\n  """{short.format("A")}"""\n  if True:\n   '
        f' def f(self):\n      """{three}"""\n'
    )
    source += ''.join(f'def g{i}():\n  """{short.format("g")}"""\n' for i in range(2))
    (tmp_path / 'pack').mkdir()
    (tmp_path / 'pack' / 'good.py').write_text(source)
    (tmp_path / 'pack' / 'broken.py').write_text('def (:')
    return docstrings.Package(
        'pack',
        'pack',
        '1',
        (('pack/broken.py', 6), ('pack/good.py', len(source)), ('pack/missing.py', 1)),
        str(tmp_path),
    )


def test_read(package):
    documents = list(docstrings.read([package], workers=1))
    assert [(d.label, d.group, d.name, len(d.sentences)) for d in documents] == [
        ('pack', 'pack/good.py', '', 3),
        ('pack', 'pack/good.py', 'A.f', 3),
        ('pack', 'pack/good.py', '(short)', 3),
    ]
    assert documents[2].sentences[0] == 'Only this one is said of A.'
    assert documents == list(docstrings.read([package], workers=2))


def test_installed_packages():
    packages = docstrings.installed_packages(12)
    names = [p.name for p in packages]
    # numpy may not be among them where the tests' own packages are larger.
    assert {'scipy', 'jax', 'keras', 'tensorflow', 'sklearn'} <= set(names)
    assert not {'pip', 'setuptools', 'bert_jax', 'pytest'} & set(names)
    assert [p.bytes for p in packages] == sorted(p.bytes for p in packages)
    assert names.index('keras') < names.index('jax') < names.index('tensorflow')
    assert not any(
        '/tests/' in file or file.endswith('_test.py') for p in packages for file, _ in p.files
    )
