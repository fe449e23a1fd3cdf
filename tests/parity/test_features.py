"""bert-extract-features against transformers.

Every layer's hidden states with real weights (MiniLM), on real sentences.
"""

from __future__ import annotations

import numpy as np

from bert_jax.inference.feature_extraction import Extractor, FeatureOptions
from bert_jax.input_pipeline.text.record_files import Reader
from bert_jax.runs.sources.source import load_source
from tests.parity.reference import torch, transformers


def test_every_layer_of_real_sentences(test_data, tmp_path):
    folder = test_data / 'minilm'
    lines = [
        line
        for line in (test_data / 'corpora' / 'sample_text.txt').read_text().splitlines()
        if line.strip()
    ][:12]
    lines += ['Yes.', 'Zürich, 東京 & naïve café: 3.14159?!']
    (tmp_path / 'in.txt').write_text('\n'.join(lines) + '\n')
    source = load_source(str(folder))
    layers = list(range(source.model.num_layers + 1))
    extractor = Extractor(source, FeatureOptions(layers, 'none', 256))
    pooled = Extractor(source, FeatureOptions([-1], 'mean', 256))
    read = lambda: Reader(str(tmp_path / 'in.txt'), ('text',)).part((0, 1), 0)
    (part,), (means,) = list(extractor(read(), '')), list(pooled(read(), ''))
    theirs, tokenizer = (
        transformers.BertModel.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    for line, row, features, mean in zip(
        lines, part.rows, part.features, means.features, strict=True
    ):
        batch = tokenizer(line, return_tensors='pt', return_offsets_mapping=True)
        offsets = batch.pop('offset_mapping')[0].numpy()
        assert row.input_ids.tolist() == batch['input_ids'][0].tolist()
        np.testing.assert_array_equal(np.stack([row.starts, row.ends], 1), offsets)
        with torch.no_grad():
            hidden = (
                torch.stack(theirs(**batch, output_hidden_states=True).hidden_states)[:, 0]
                .numpy()
                .swapaxes(0, 1)
            )
        np.testing.assert_allclose(features, hidden, atol=2e-5, rtol=0)
        np.testing.assert_allclose(mean[0], hidden[:, -1].mean(0), atol=2e-5, rtol=0)
