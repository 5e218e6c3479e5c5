package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// quiet are the metrics that have no data on the day of the demonstration, by the
// beginning of their names, and why. One that has data all the same, or that no panel
// asks for, has no place here.
var quiet = map[string]string{
	"redrive_breaker_":          "handlers have a limit in its place, and the demonstration has no other HTTP client",
	"redrive_partition_stalled": "the broker of the demonstration has no partitions",
}

// watchFor is how long Prometheus watches: a minute of the demonstration, which begins
// anew with each, and the window of the rates.
const watchFor = 90 * time.Second

// diesAgain is the exit code of redrive dlq send where letters die again.
const diesAgain = 3

// live runs the demonstration, the retry service and Prometheus, and queries what the
// panels of all dashboards show. Bin has the commands demo and redrive.
func live(ctx context.Context, root, bin string, out io.Writer) (err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "redrive-monitoring")
	if err != nil {
		return err
	}
	d := &day{dir: dir, bin: bin, out: out}
	defer func() { err = errors.Join(err, d.end(), os.RemoveAll(dir)) }()
	if err := d.begin(ctx, root); err != nil {
		return err
	}
	return d.queryAll(ctx, root)
}

// day is what runs, in a folder of its own.
type day struct {
	dir, bin                               string
	out                                    io.Writer
	bank, serve, worker, retries, database string // addresses
	running                                []*exec.Cmd
}

// begin starts all of it, and returns when Prometheus has watched for long enough.
func (d *day) begin(ctx context.Context, root string) error {
	for _, address := range []*string{&d.bank, &d.serve, &d.worker, &d.retries, &d.database} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		*address = l.Addr().String()
		if err := l.Close(); err != nil {
			return err
		}
	}
	if err := d.prometheus(ctx, root); err != nil {
		return err
	}
	demo := filepath.Join(d.dir, "demo")
	err := d.start(ctx, "Ctrl-C ends it all", filepath.Join(d.bin, "demo"), "-dir", demo, "-rabbitmq", "", "-bank", d.bank, "-listen", d.serve, "-watch", d.worker)
	if err != nil {
		return err
	}
	if err := d.start(ctx, "", filepath.Join(d.bin, "redrive"), "service", "--allow", "127.0.0.0/8", "--listen", d.retries, "--store", filepath.Join(d.dir, "service.db")); err != nil {
		return err
	}
	for _, args := range [][]string{{"dlq", "send", "1"}, {"dlq", "send", "--error", "1", "--rate", "500", "--yes"}} {
		cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "redrive"), args...)
		cmd.Env = append(os.Environ(), "REDRIVE_CONFIG="+filepath.Join(demo, "redrive.yaml"))
		text, err := cmd.CombinedOutput()
		if exit := cmd.ProcessState; err != nil && (exit == nil || exit.ExitCode() != diesAgain) {
			return fmt.Errorf("redrive %s: %w\n%s", strings.Join(args, " "), err, text)
		}
	}
	return d.tasks(ctx)
}

// prometheus starts it on the rules and on what there will be to scrape.
func (d *day) prometheus(ctx context.Context, root string) error {
	rules, err := filepath.Abs(filepath.Join(root, "monitoring", "alerts.yml"))
	if err != nil {
		return err
	}
	config := fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 5s}
rule_files: [%q]
scrape_configs:
  - {job_name: worker, static_configs: [{targets: [%q]}]}
  - {job_name: letters, static_configs: [{targets: [%q]}]}
  - {job_name: retries, static_configs: [{targets: [%q]}]}
`, rules, d.worker, d.serve, d.retries)
	file := filepath.Join(d.dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	name, err := exec.LookPath("prometheus")
	if err != nil {
		return fmt.Errorf("no prometheus: apt-get install prometheus: %w", err)
	}
	return d.start(ctx, "Server is ready", name, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(d.dir, "data"), "--web.listen-address="+d.database)
}

// start starts a program, and waits until it says that it is ready.
func (d *day) start(ctx context.Context, ready, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = d.dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "REDRIVE_") })
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	if err = errors.Join(err, write.Close()); err != nil {
		return errors.Join(err, read.Close())
	}
	d.running = append(d.running, cmd)
	said := make(chan error, 1)
	go func() {
		defer read.Close()
		var all bytes.Buffer
		lines, waits := bufio.NewScanner(read), ready != ""
		for lines.Scan() {
			fmt.Fprintln(&all, lines.Text())
			if waits && strings.Contains(lines.Text(), ready) {
				said <- nil
				waits = false
			}
		}
		if waits {
			said <- fmt.Errorf("%s has ended:\n%s", filepath.Base(name), &all)
		}
	}()
	if ready == "" {
		return nil
	}
	select {
	case err := <-said:
		return err
	case <-time.After(5 * time.Minute):
		return fmt.Errorf("%s is not ready after 5 min", filepath.Base(name))
	}
}

// end ends what was started, the last first.
func (d *day) end() (err error) {
	for _, cmd := range slices.Backward(d.running) {
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // the exit code of a program that was told to end
	}
	return err
}

// tasks sends tasks to the retry service while Prometheus watches.
func (d *day) tasks(ctx context.Context) error {
	policy := `{"policyId": "mails", "initialDelayMs": 500, "maxDelayMs": 5000}`
	for n := 0; ; n++ { // it may not listen yet
		err := post(ctx, "http://"+d.retries+"/retry-policies", policy)
		if err == nil {
			break
		}
		if n == 300 {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	until := time.Now().Add(watchFor)
	for n := 0; time.Now().Before(until); n++ {
		path := "/mails"
		if n%20 == 0 {
			path = "/nothing" // is given up
		}
		task := fmt.Sprintf(`{"policyId": "mails", "idempotencyKey": "mail-%d", "method": "POST", "targetUrl": "http://%s%s"}`, n, d.bank, path)
		if err := post(ctx, "http://"+d.retries+"/retry-tasks", task); err != nil {
			return err
		}
		time.Sleep(250 * time.Millisecond)
	}
	return ctx.Err()
}

func post(ctx context.Context, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	_, err = do(req)
	return err
}

func do(req *http.Request) ([]byte, error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", req.Method, req.URL, resp.Status, text)
	}
	return text, err
}

// queryAll queries each panel, and returns an error if one has no data without a
// reason, or a rule fails.
func (d *day) queryAll(ctx context.Context, root string) error {
	all, err := dashboards(root)
	if err != nil {
		return err
	}
	grafana := strings.NewReplacer("$__rate_interval", "30s", "$job", ".*", "$topic", ".*", "$broker", ".*")
	var faults []error
	asked, queries, empty := map[string]bool{}, 0, 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, p := range all[name].Panels {
			for _, q := range p.Targets {
				series, err := d.query(ctx, grafana.Replace(q.Expr))
				if err != nil {
					return err
				}
				queries++
				why := ""
				for metric := range quiet {
					if strings.Contains(q.Expr, metric) {
						asked[metric], why = true, quiet[metric]
					}
				}
				switch {
				case series == 0 && why == "":
					faults = append(faults, fmt.Errorf("%s, %s, %s has no data: %s", name, p.Title, q.LegendFormat, q.Expr))
				case series > 0 && why != "":
					faults = append(faults, fmt.Errorf("%s, %s, %s has data, although %s: %s", name, p.Title, q.LegendFormat, why, q.Expr))
				case series == 0:
					empty++
				}
			}
		}
	}
	for metric := range quiet {
		if !asked[metric] {
			faults = append(faults, fmt.Errorf("no panel asks for %s any more", metric))
		}
	}
	rules, err := d.rules(ctx)
	fmt.Fprintf(d.out, "%d queries of %d dashboards, %d of them without data for a known reason; %d rules\n", queries, len(all), empty, rules)
	return errors.Join(append(faults, err)...)
}

// query returns how many series an expression had in the last minute.
func (d *day) query(ctx context.Context, expr string) (series int, err error) {
	now := time.Now()
	values := url.Values{"query": {expr}, "step": {"5"},
		"start": {fmt.Sprint(now.Add(-watchFor + 20*time.Second).Unix())}, "end": {fmt.Sprint(now.Unix())}}
	var answer struct {
		Data struct {
			Result []struct {
				Values [][2]any
			}
		}
	}
	if err := d.ask(ctx, "query_range?"+values.Encode(), &answer); err != nil {
		return 0, err
	}
	for _, r := range answer.Data.Result {
		if slices.ContainsFunc(r.Values, func(v [2]any) bool { return v[1] != "NaN" }) {
			series++
		}
	}
	return series, nil
}

// rules returns how many rules there are, and those that fail.
func (d *day) rules(ctx context.Context) (n int, err error) {
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError, State string }
			}
		}
	}
	if err := d.ask(ctx, "rules", &answer); err != nil {
		return 0, err
	}
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health != "ok" {
				err = errors.Join(err, fmt.Errorf("the rule %s is %s: %s", r.Name, r.Health, r.LastError))
			}
			if r.State == "firing" {
				fmt.Fprintf(d.out, "%s fires\n", r.Name)
			}
		}
	}
	return n, err
}

func (d *day) ask(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.database+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	text, err := do(req)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}
