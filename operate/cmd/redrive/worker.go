package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
)

// workerToken is the environment variable with the token of the workers.
const workerToken = "REDRIVE_WORKER_TOKEN"

// workerRow is what a worker answered.
type workerRow struct {
	// Worker is its address, as it was given.
	Worker string `json:"worker"`

	// State is `new`, `opening`, `running`, `draining` or `stopped`; empty if it has not
	// answered, or refused.
	State string `json:"state"`

	// Paused is what is paused by hand: a line for each.
	Paused []string `json:"paused"`

	// Error is why it did not do what it was asked for; empty if it did.
	Error string `json:"error"`

	absent bool // it does not have what was named
}

var workerTable = table[workerRow]{"worker state paused", func(r workerRow) []any {
	if r.Error != "" {
		return []any{r.Worker, cmp.Or(r.State, failed), r.Error}
	}
	return []any{r.Worker, r.State, cmp.Or(strings.Join(r.Paused, "; "), "nothing")}
}}

// workerActions are what a worker can be asked for, with the names that they take.
var workerActions = map[string][]string{"status": nil, "pause": {"topic"}, "resume": {"topic"}, "skip": {"topic", "id"}, "drain": nil}

// workerFlags are those of redrive worker.
type workerFlags struct {
	view
	author
	length, within            time.Duration
	until, tenant, dependency string
	forever                   bool
	tokenFile                 string
}

func newWorker(streams term.Streams) *cobra.Command {
	f := &workerFlags{}
	cmd := &cobra.Command{
		Use:   "worker address... [status | pause topic | resume topic | skip topic id | drain]",
		Short: "Ask workers what they do, pause a topic, skip a message, or stop them",
		Long: `Worker calls several workers at once, at the addresses of their handlers of package
health, and prints a line for each. An address is host:port, or a URL where the
handler is below a path.

  status   what is paused by hand; needs no token
  pause    let nothing of a topic start until a time. With --dependency or
           --tenant it is that, and no topic
  resume   end such a pause
  skip     turn a message that runs or waits in a worker into a dead letter. It
           is enough if one of the workers has it
  drain    stop, as on SIGTERM

The token of the workers is in REDRIVE_WORKER_TOKEN, or in a file. A pause is of the
workers that were called, and ends with their process.`,
		Example: `  redrive worker 10.0.0.1:8081 10.0.0.2:8081
  redrive worker 10.0.0.1:8081 10.0.0.2:8081 pause payments --for 2h --because 'the bank asks'
  redrive worker 10.0.0.1:8081 10.0.0.2:8081 resume payments
  redrive worker 10.0.0.1:8081 pause --tenant acme --until 2026-01-31T15:00:00Z
  redrive worker 10.0.0.1:8081 10.0.0.2:8081 skip orders order-4711`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			addresses, action, form, err := f.read(cmd, args)
			if err != nil {
				return usage(err)
			}
			token, err := f.token(action)
			if err != nil {
				return err
			}
			rows := askWorkers(cmd.Context(), addresses, action, form, token, f.within)
			if err := show(streams, &f.view, workerTable, all(rows)); err != nil {
				return err
			}
			return failures(action, rows)
		},
	}
	flags := cmd.Flags()
	f.view.register(flags)
	f.author.register(flags)
	flags.DurationVar(&f.length, "for", 0, "how long to pause, such as 2h")
	flags.StringVar(&f.until, "until", "", "when the pause ends, by the clock of the worker: a `time` of RFC 3339")
	flags.BoolVar(&f.forever, "forever", false, "pause until it is resumed")
	flags.StringVar(&f.dependency, "dependency", "", "pause or resume this TopicConfig.Dependency, with all topics of it")
	flags.StringVar(&f.tenant, "tenant", "", "pause or resume this `name` that TopicConfig.DependencyOf returns")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with the token of the workers (default: the environment variable "+workerToken+")")
	flags.DurationVar(&f.within, "timeout", 10*time.Second, "how long a worker may take to answer")
	return cmd
}

// read takes the command line apart.
func (f *workerFlags) read(cmd *cobra.Command, args []string) (addresses []*url.URL, action string, form url.Values, err error) {
	action, form = "status", url.Values{}
	at := slices.IndexFunc(args, func(word string) bool { _, ok := workerActions[word]; return ok })
	var names []string
	if at >= 0 {
		action, names, args = args[at], args[at+1:], args[:at]
	}
	if len(args) == 0 {
		return nil, action, nil, errors.New("name one worker at least, such as 10.0.0.1:8081")
	}
	for _, arg := range args {
		u, err := workerURL(arg)
		if err != nil {
			return nil, action, nil, err
		}
		addresses = append(addresses, u)
	}
	for name, value := range map[string]string{"dependency": f.dependency, "tenant": f.tenant, "until": f.until} {
		if value != "" {
			form.Set(name, value)
		}
	}
	if f.length != 0 {
		form.Set("for", f.length.String())
	}
	if f.forever {
		form.Set("forever", "true")
	}
	wanted := workerActions[action]
	if form.Has("dependency") || form.Has("tenant") {
		wanted = wanted[min(1, len(wanted)):]
	}
	if len(names) != len(wanted) {
		return nil, action, nil, fmt.Errorf("%s takes %d names after it (%s), and got %q", action, len(wanted), strings.Join(wanted, " "), names)
	}
	for i, name := range wanted {
		form.Set(name, names[i])
	}
	ends := len(form["for"]) + len(form["until"]) + len(form["forever"])
	switch {
	case action == "pause" && ends != 1:
		return nil, action, nil, errors.New("say how long: one of --for 2h, --until 2026-01-31T15:00:00Z and --forever")
	case action != "pause" && ends > 0:
		return nil, action, nil, fmt.Errorf("--for, --until and --forever are for pause, not for %s", action)
	case action != "pause" && action != "resume" && (form.Has("dependency") || form.Has("tenant")):
		return nil, action, nil, fmt.Errorf("--dependency and --tenant are for pause and resume, not for %s", action)
	}
	if action == "pause" || action == "skip" {
		actor := f.of(cmd, args)
		form.Set("by", actor.Who)
		if actor.Reason != "" {
			form.Set("why", actor.Reason)
		}
	}
	return addresses, action, form, nil
}

// workerURL is the address of a handler.
func workerURL(arg string) (*url.URL, error) {
	text := arg
	if !strings.Contains(arg, "://") {
		text = "http://" + arg
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is no address of a worker: write 10.0.0.1:8081, or https://worker.example.com/billing", arg)
	}
	return u, nil
}

// token reads the token, if the action needs one.
func (f *workerFlags) token(action string) (string, error) {
	token := os.Getenv(workerToken)
	if f.tokenFile != "" {
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return "", fmt.Errorf("the token cannot be read: %w", err)
		}
		token = string(text)
	}
	if token = strings.TrimSpace(token); token == "" && action != "status" {
		return "", usage(fmt.Errorf("%s needs the token of the workers: set %s, or name a file with --token-file", action, workerToken))
	}
	return token, nil
}

// askWorkers asks all workers at once. The rows are in the order of the addresses.
func askWorkers(ctx context.Context, addresses []*url.URL, action string, form url.Values, token string, within time.Duration) []workerRow {
	rows := make([]workerRow, len(addresses))
	var calls sync.WaitGroup
	for i, address := range addresses {
		calls.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %s", within))
			defer cancel()
			rows[i] = askWorker(ctx, address, action, form, token)
		})
	}
	calls.Wait()
	return rows
}

// workers follows no redirect: the token is for the worker alone.
var workers = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

const answerMost = 16 << 20 // bytes of a status

func askWorker(ctx context.Context, address *url.URL, action string, form url.Values, token string) (row workerRow) {
	row = workerRow{Worker: address.Host + strings.TrimSuffix(address.Path, "/"), Paused: []string{}}
	method, path, body := http.MethodPost, action, form.Encode()
	if action == "status" {
		method, path, body = http.MethodGet, "statusz", ""
	}
	r, err := http.NewRequestWithContext(ctx, method, address.JoinPath(path).String(), strings.NewReader(body))
	if err != nil {
		row.Error = err.Error()
		return row
	}
	r.Header.Set("Accept", "application/json")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := workers.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		row.Error = err.Error()
		return row
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerMost))
	var status health.Status
	switch {
	case err != nil:
		row.Error = err.Error()
	case answer.StatusCode == http.StatusOK:
		if err := json.Unmarshal(text, &status); err != nil || status.State == "" {
			row.Error = "this is no worker: its answer is no status"
			break
		}
		row.State = string(status.State)
		for _, p := range status.ByHand {
			row.Paused = append(row.Paused, p.String())
		}
	default:
		row.Error = answer.Status + ": " + strings.TrimSpace(string(text[:min(len(text), 1000)]))
		row.absent = answer.StatusCode == http.StatusNotFound && strings.Contains(string(text), health.ErrUnknown.Error())
		if answer.StatusCode == http.StatusNotFound && !row.absent {
			row.Error = answer.Status + ": the worker has no actions, because its handler has no token (health.Options.Token)"
		}
	}
	return row
}

// failures says which workers did not do what they were asked for. Of a message that
// is skipped, only one has to have it.
func failures(action string, rows []workerRow) error {
	var bad []string
	done := 0
	for _, r := range rows {
		if r.Error == "" {
			done++
		} else if action != "skip" || !r.absent {
			bad = append(bad, r.Worker)
		}
	}
	switch {
	case len(bad) == 0 && done > 0:
		return nil
	case len(bad) == 0:
		return errors.New("no worker has the message")
	case done == 0:
		return fmt.Errorf("no worker did it: %s", strings.Join(bad, ", "))
	}
	return &partialError{fmt.Errorf("%d of %d workers did not do it: %s", len(bad), len(rows), strings.Join(bad, ", "))}
}
