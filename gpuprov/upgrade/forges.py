"""CI jobs that install gpuprov, load a key, keep the output and open an issue. Text only."""

from __future__ import annotations

import shlex
from string import Template

from gpuprov.inventory.wheel import Wheel, install_lines

KEY_S = 6 * 3600
"""Seconds for which the agent of a job has the key: a job of GitHub takes at most 6 h."""
SAID, JUNIT, ISSUE = "gpuprov.txt", "gpuprov.xml", "gpuprov.md"
FENCED = (
    f"{{ echo '```text'; cut -b -2000 {SAID} | head -c 60000 | iconv -c -f UTF-8 -t UTF-8 |"
    f" tr '`' \"'\" || :; printf '\\n```\\n'; }} >{ISSUE}"
)
"""Line of sh that writes the text of an issue: text of nodes stays text, and a line of one leaves room for
others; GitHub accepts 65,536 characters. Where a text is cut, `cut` and `iconv` fail."""

GITHUB = Template("""\
# Needs: a runner that reaches the nodes; the secret GPUPROV_SSH_KEY (a private key) and the variable
# GPUPROV_KNOWN_HOSTS (lines of known_hosts). Actions are pinned by commit, what is installed by hash; the key
# comes into the job after the installation.
name: gpuprov $name
on:
  schedule:
    - cron: "$cron"
  workflow_dispatch:
permissions: {contents: read, issues: write}
concurrency: gpuprov
jobs:
  $name:
    runs-on: self-hosted
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with: {python-version: "3.12"}
      - name: Install gpuprov
        run: |
          $install
      - name: Take the key into an agent, not to the disk
        env:
          GPUPROV_SSH_KEY: $${{ secrets.GPUPROV_SSH_KEY }}
          GPUPROV_KNOWN_HOSTS: $${{ vars.GPUPROV_KNOWN_HOSTS }}
        run: |
          ssh-agent -a "$$RUNNER_TEMP/agent" >/dev/null
          export SSH_AUTH_SOCK="$$RUNNER_TEMP/agent"
          printf '%s\\n' "$$GPUPROV_SSH_KEY" | ssh-add -q -t $key -
          install -d -m 700 ~/.ssh
          # ssh reads known_hosts2, too. It is written whole: a line that is no longer stated is gone.
          made=$$(mktemp ~/.ssh/known.XXXXXX)
          printf '%s\\n' "$$GPUPROV_KNOWN_HOSTS" >"$$made"
          mv "$$made" ~/.ssh/known_hosts2
          echo "SSH_AUTH_SOCK=$$SSH_AUTH_SOCK" >>"$$GITHUB_ENV"
      - name: gpuprov $name
        id: look
        run: |
          code=0
          ( $command ) >$said 2>&1 || code=$$?
          # Lines of nodes that begin with :: are no commands for GitHub, such as ::add-mask::.
          mark=$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
          echo "::stop-commands::$$mark"
          cat $said
          printf '\\n::%s::\\n' "$$mark"
          echo "code=$$code" >>"$${GITHUB_OUTPUT:-/dev/null}"
          exit $$code
      - uses: actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2
        if: always()
        with: {name: gpuprov-$name, path: "gpuprov.*"}
      - name: Open an issue, or add to the one that is open
        if: always() && steps.look.outputs.code != '0'
        env: {GH_TOKEN: "$${{ github.token }}"}
        run: |
          $fenced
          own='.[] | select(.title == "gpuprov $name" and .user.login == "github-actions[bot]") | .number'
          issues="repos/$$GITHUB_REPOSITORY/issues?state=open&per_page=100"
          open=$$(gh api --paginate "$$issues" --jq "$$own" | head -n 1)
          if [ -n "$$open" ]; then gh issue comment "$$open" --body-file gpuprov.md
          else gh issue create --title "gpuprov $name" --body-file gpuprov.md; fi
      - name: Remove the key from the agent
        if: always()
        run: |
          ssh-add -q -D || :
""")

GITLAB = Template("""\
# Needs: a runner that reaches the nodes, a pipeline schedule, and of CI/CD variables GPUPROV_SSH_KEY and
# GPUPROV_KNOWN_HOSTS (both of type File) and GPUPROV_TOKEN (scope api, for issues).
# What is installed is pinned by hash; pin the image as well (image: python:3.12@sha256:...).
gpuprov-$name:
  image: python:3.12
  rules:
    - if: $$CI_PIPELINE_SOURCE == "schedule"
  resource_group: gpuprov
  before_script:
    - apt-get -q update && apt-get -q -y install --no-install-recommends gpgv openssh-client
    $install
    - eval "$$(ssh-agent -s)" && trap 'ssh-agent -k >/dev/null' EXIT
    - chmod 600 "$$GPUPROV_SSH_KEY" && ssh-add -q -t $key "$$GPUPROV_SSH_KEY"
    # ssh reads known_hosts2, too: other lines of the runner's user stay.
    - install -d -m 700 ~/.ssh && made=$$(mktemp ~/.ssh/known.XXXXXX)
    - cat "$$GPUPROV_KNOWN_HOSTS" >"$$made" && mv "$$made" ~/.ssh/known_hosts2
  script:
    - |
      code=0
      ( $command ) >$said 2>&1 || code=$$?
      cat $said
      exit $$code
  after_script:
    - |
      [ "$$CI_JOB_STATUS" = success ] || [ -z "$$GPUPROV_TOKEN" ] || {
        $fenced
        issues="$$CI_API_V4_URL/projects/$$CI_PROJECT_ID/issues"
        # Not in an argument: other users of the machine could read it.
        api() {
          printf 'header = "PRIVATE-TOKEN: %s"\\n' "$$GPUPROV_TOKEN" |
            curl --fail --silent --show-error --config - "$$@"
        }
        me=$$(api "$$CI_API_V4_URL/user" |
          python3 -I -c 'import json, sys; print(int(json.load(sys.stdin)["id"]))')
        own='import json, sys; print(*[int(each["iid"]) for each in json.load(sys.stdin)
          if each["title"] == "gpuprov $name"][:1])'
        open=$$(api --get --data-urlencode "search=gpuprov $name" \
          "$$issues?state=opened&in=title&author_id=$$me&per_page=100" | python3 -I -c "$$own")
        if [ -n "$$open" ]; then set -- "body@gpuprov.md" "$$issues/$$open/notes"
        else set -- "description@gpuprov.md" --data-urlencode "title=gpuprov $name" "$$issues"; fi
        api --output /dev/null --data-urlencode "$$@"
      }
  artifacts:
    when: always
    paths: [$said]
    reports: {junit: $junit}
""")


def github(name: str, command: str, cron: str, wheel: Wheel) -> str:
    """Return the text of a GitHub workflow that runs a command at the times of `cron`.

    Args:
        command: a line of sh.
        cron: five fields, in UTC.
        wheel: the wheel to install.
    """
    install = ("\n" + " " * 10).join(install_lines(wheel))
    return GITHUB.substitute(
        name=name, command=command, cron=cron, said=SAID, fenced=FENCED, install=install, key=KEY_S
    )


def gitlab(name: str, command: str, wheel: Wheel) -> str:
    """Return the text of a GitLab job that runs a command; a pipeline schedule of the project starts it."""
    # One block per line: a line that fails ends the job, and YAML does not interpret the shell's quotes.
    install = ("\n" + " " * 4).join(f"- |\n      {line}" for line in install_lines(wheel))
    text = GITLAB.substitute(
        name=name, command=command, said=SAID, fenced=FENCED, junit=JUNIT, install=install, key=KEY_S
    )
    return text if JUNIT in command else text.replace(f"    reports: {{junit: {JUNIT}}}\n", "")


def in_a_forge(program: str, words: tuple[str, ...]) -> str:
    """Return gpuprov's command line for a CI job, for drift with JUnit XML."""
    junit = ["--junit", JUNIT] if words[0] == "drift" else []
    return shlex.join([program, *words, *junit])
