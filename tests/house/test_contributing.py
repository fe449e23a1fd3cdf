"""What contributors are told is so: paths that exist, suites that the scripts have."""

from __future__ import annotations

import re

import pytest

from tests.helpers.processes import ROOT

SUITES = set(re.findall(r'^  --(\w+)\)', (ROOT / 'launch/test.sh').read_text(), re.MULTILINE))


def test_the_guide_names_every_suite_and_files_that_are_there():
    text = (ROOT / 'CONTRIBUTING.md').read_text()
    assert set(re.findall(r'`bash launch/test\.sh --(\w+)`', text)) == SUITES
    folders = '|'.join(('bert_jax', 'configs', 'docs', 'input_pipeline', 'launch', 'tests'))
    paths = re.findall(rf'(?<![\w/])(?:{folders})/[\w/.]*\w', text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_workflow_runs_every_suite():
    yaml = pytest.importorskip('yaml')
    jobs = yaml.safe_load((ROOT / '.github/workflows/tests.yml').read_text())['jobs']
    assert set(jobs['suites']['strategy']['matrix']['suite']) == SUITES
    supported = jobs['core']['strategy']['matrix']['python']
    setup = (ROOT / 'setup.cfg').read_text()
    assert supported == re.findall(r'Programming Language :: Python :: (3\.\d+)', setup)


def test_the_citation_and_the_changelog_have_the_version_of_the_package():
    version = re.search(r'^version = (.*)$', (ROOT / 'setup.cfg').read_text(), re.MULTILINE)
    assert version and f'version: {version[1]}\n' in (ROOT / 'CITATION.cff').read_text()
    _, *parts = (ROOT / 'CHANGELOG.md').read_text().split('\n## [')
    newest = parts[1] if parts[0].startswith('Unreleased]') else parts[0]
    assert newest.startswith(f'{version[1]}] - ')
    groups = re.findall(r'^### (.*)$', newest, re.MULTILINE)
    assert groups == ['Upgrade notes', 'Added', 'Changed', 'Removed', 'Fixed']
