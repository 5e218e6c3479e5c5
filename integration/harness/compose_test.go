//go:build unix

package harness

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeDocker puts a client in the way that writes its arguments down, and
// answers for containers that run, are paused, or are there at all.
func fakeDocker(t *testing.T, running, paused, all string) (commands func() []string) {
	t.Helper()
	dir := t.TempDir()
	script := `#!/bin/sh
shift 3 # compose --file FILE
case "$*" in
*"--status running") echo "$RUNNING" ;;
*"--status paused") echo "$PAUSED" ;;
*"--all --quiet") printf %s "$ALL" ;;
*) echo "$*" >>"$SAID" ;;
esac
`
	must(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755))
	said := filepath.Join(dir, "said")
	for key, value := range map[string]string{
		"PATH": dir + string(os.PathListSeparator) + os.Getenv("PATH"),
		"SAID": said, "RUNNING": running, "PAUSED": paused, "ALL": all,
	} {
		t.Setenv(key, value)
	}
	return func() []string {
		text, err := os.ReadFile(said)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	}
}

// TestComposeCommands stands in for an engine, which not every machine has.
func TestComposeCommands(t *testing.T) {
	kafka, err := Select("kafka")
	must(t, err)
	one := kafka[0]
	for _, tt := range []struct {
		name                 string
		running, paused, all string
		act                  func(engine) error
		want                 []string
	}{
		{name: "start those that do not run", running: "kafka43", want: []string{"up --detach --wait kafka39"},
			act: func(e engine) error { _, err := e.start(t.Context(), kafka); return err }},
		{name: "start a frozen one", running: "kafka43\nkafka39", paused: "kafka39", want: []string{"unpause kafka39"},
			act: func(e engine) error { _, err := e.start(t.Context(), kafka); return err }},
		{name: "kill a frozen one", paused: "kafka43", want: []string{"unpause kafka43", "kill kafka43"},
			act: func(e engine) error { return e.kill(t.Context(), one) }},
		{name: "down beside others", all: "1234", want: []string{"rm --stop --force --volumes kafka43 kafka39"},
			act: func(e engine) error { return e.down(t.Context(), kafka) }},
		{name: "down of the last", want: []string{"rm --stop --force --volumes kafka43 kafka39", "down --volumes --remove-orphans"},
			act: func(e engine) error { return e.down(t.Context(), kafka) }},
		{name: "down of all", all: "1234", paused: "kafka39", want: []string{"unpause kafka39", "down --volumes --remove-orphans"},
			act: func(e engine) error { return e.down(t.Context(), Brokers()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			commands := fakeDocker(t, tt.running, tt.paused, tt.all)
			engine, err := newCompose(t.Output())
			must(t, err)
			must(t, tt.act(engine))
			if got := commands(); !slices.Equal(got, tt.want) {
				t.Errorf("docker compose %q, want %q", got, tt.want)
			}
			ended := engine.check(t.Context(), one)
			if runs := strings.Contains(tt.running, one.Name); (ended == nil) != runs {
				t.Errorf("check = %v where it runs: %v", ended, runs)
			}
		})
	}
}
