# The exporter alone: docker build -t llm-vitals . && docker run --rm -p 127.0.0.1:10434:10434 -e VLLM_URL=... llm-vitals
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY deploy/*.lock deploy/
# Two environments: what builds the package does not go into the image, and neither does pip.
RUN python -m venv /build \
 && /build/bin/pip install --require-hashes -r deploy/build.lock \
 && python -m venv --without-pip /opt/llm-vitals \
 && /build/bin/pip --python /opt/llm-vitals/bin/python install --no-compile --require-hashes -r deploy/requirements.lock
COPY . .
RUN /build/bin/python -m hatchling build --target wheel \
 && /build/bin/pip --python /opt/llm-vitals/bin/python install --no-compile --no-deps --no-index dist/*.whl
# Byte code of all that is imported, the standard library's too, which the base image lacks: the image cannot write it
# at run time, and a start would take thrice as long. It holds no time, so that the same sources make the same bytes.
RUN PYTHONPYCACHEPREFIX=/opt/llm-vitals/pycache PYTHONHASHSEED=0 /opt/llm-vitals/bin/python deploy/compile.py \
 && find /opt -exec touch --no-dereference --date=@0 {} +

FROM python:${PYTHON}-slim
ARG REVISION=unknown
LABEL org.opencontainers.image.title="llm-vitals" \
      org.opencontainers.image.description="The vital signs of self-hosted LLM servers, for Prometheus" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt /opt
ENV PATH=/opt/llm-vitals/bin:$PATH PYTHONPYCACHEPREFIX=/opt/llm-vitals/pycache PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 LLM_VITALS_LISTEN=0.0.0.0:10434
# A number, so that an orchestrator can see that it is not root.
USER 10434:10434
WORKDIR /
EXPOSE 10434
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s CMD ["llm-vitals", "check", "--self"]
ENTRYPOINT ["llm-vitals"]
CMD ["run"]
