# docker build -f deploy/router.Dockerfile -t gruff-router deploy
# docker run -p 8000:8000 -e WORKERS="http://worker-1:8000 http://worker-2:8000" gruff-router

FROM python:3.11-slim-bookworm
RUN pip install --no-cache-dir vllm-router==0.1.17
COPY router.sh /usr/local/bin/router.sh
USER 10001:10001
EXPOSE 8000 29000
ENTRYPOINT ["sh", "/usr/local/bin/router.sh"]
