# This program in an image, for Kubernetes or a single machine (docs/clusters.md):
#
#   docker build --tag bert_jax .                                           CPU
#   docker build --tag bert_jax --build-arg EXTRAS=tpu,gcs,tensorflow .     TPU, with gs:// paths
#   docker build --tag bert_jax --build-arg EXTRAS=cuda,tensorflow .        NVIDIA GPU
#   docker run --init --rm bert_jax python -m bert_jax.launch.pretrain --help

# The environment is made in a stage of its own, so that nothing is left of its making.
FROM python:3.13-slim-bookworm AS environment
ARG EXTRAS=gcs,tensorflow
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt ".[${EXTRAS}]"

FROM python:3.13-slim-bookworm
# The number of this user is that of the group of a volume in launch/cluster/jobset.yaml.
RUN useradd --create-home --uid 1000 bert
COPY --from=environment /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /home/bert
# In the form of a list, without a shell, which would keep SIGTERM from the program. It lists the commands.
CMD ["bert-jax"]
