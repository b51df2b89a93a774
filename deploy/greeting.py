"""The text shown once a deployment can serve: where it is, and a first request to copy."""

from deploy.expand import DeploymentPlan

GREETING = """\
Ready after {elapsed_s:.0f} s: {url}/v1  (model {model}; Ctrl-C stops everything)
Metrics: {control_url}/metrics

Try it with curl:

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 32}}'

or with the openai client:

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  answer = client.chat.completions.create(
      model="{model}", messages=[{{"role": "user", "content": "Hello"}}], max_tokens=32
  )
  print(answer.choices[0].message.content)
"""


def greeting(plan: DeploymentPlan, elapsed_s: float) -> str:
    """The endpoint with a curl and a Python snippet for it."""
    return GREETING.format(
        elapsed_s=elapsed_s, url=plan.router_url, control_url=plan.control_url, model=plan.spec.served_model_name
    )
