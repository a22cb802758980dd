# The exporter alone: docker build -t llm-vitals . && docker run --rm -p 127.0.0.1:10434:10434 -e VLLM_URL=... llm-vitals
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/llm-vitals
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY exporter ./exporter
RUN /opt/llm-vitals/bin/pip install .

FROM python:${PYTHON}-slim
COPY --from=build /opt/llm-vitals /opt/llm-vitals
ENV PATH=/opt/llm-vitals/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that an orchestrator can see that it is not root.
USER 10434:10434
WORKDIR /
EXPOSE 10434
# http.client rather than urllib: a proxy set in the environment is for the outside world. The image has no curl.
HEALTHCHECK --interval=5s --timeout=5s --start-period=15s CMD ["python", "-c", "\
import http.client as h; c = h.HTTPConnection('127.0.0.1', 10434, timeout=4); c.request('GET', '/-/healthy'); \
raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["llm-vitals"]
CMD ["run", "--listen", "0.0.0.0:10434"]
