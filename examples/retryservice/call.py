"""Has a call made that must succeed eventually, and waits for its end.

    python3 call.py KEY URL [BODY]

KEY says which call this is: the number of an order, say. The same key is the same
call, however often this program is started. The exit code is 0 if the call succeeded,
1 if it was given up or cancelled, 2 if the service refuses it, and 75 if nothing is
known yet: then start the program again with the same words.

RETRY_SERVICE is the address of the service, RETRY_TOKEN what it wants to see, if it
does, and PATIENCE how many seconds to wait.
"""
import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

SERVICE = os.environ.get("RETRY_SERVICE", "http://127.0.0.1:7430")
END = time.monotonic() + float(os.environ.get("PATIENCE", "60"))


def ask(path, document=None):
    """Returns what the service answers. Where no answer came, it asks again: a task
    and a policy may be sent any number of times."""
    headers = {"Content-Type": "application/json"}
    if "RETRY_TOKEN" in os.environ:
        headers["Authorization"] = "Bearer " + os.environ["RETRY_TOKEN"]
    data = None if document is None else json.dumps(document).encode()
    pause = 0.1
    while True:
        try:
            request = urllib.request.Request(SERVICE + path, data, headers)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            if e.code < 500 and e.code != 408:
                print(e.read().decode(errors="replace").strip(), file=sys.stderr)
                sys.exit(2)
            trouble = e
        except (OSError, http.client.HTTPException, ValueError) as e:
            trouble = e  # perhaps the service has the task, and the answer got lost
        wait(pause, trouble)
        pause = min(2 * pause, 5)


def wait(most, why):
    """Waits for up to so many seconds, or gives up."""
    seconds = random.uniform(most / 2, most)
    if time.monotonic() + seconds > END:
        print("nothing is known yet:", why, file=sys.stderr)
        sys.exit(75)
    time.sleep(seconds)


def main(key, url, body=""):
    ask("/retry-policies", {"policyId": "orders", "maxAttempts": 8, "totalBudgetMs": 3_600_000})
    task = ask("/retry-tasks", {"policyId": "orders", "idempotencyKey": key, "targetUrl": url, "body": body})
    while task["status"] in ("PENDING", "IN_FLIGHT"):
        wait(1, "the task %s is %s" % (task["taskId"], task["status"]))
        task = ask("/retry-tasks/" + task["taskId"])
    print(task["status"], task.get("lastError", ""))
    return 0 if task["status"] == "SUCCEEDED" else 1


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
