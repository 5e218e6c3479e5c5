package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/text"
)

// secret is what no command may print.
const secret = "correct horse battery staple"

// TestSessions types the sessions, and compares what is printed, and the exit codes.
// Their JSON is a promise.
func TestSessions(t *testing.T) { sessions(t, "sessions") }

// TestStorms types the sessions that take longer.
func TestStorms(t *testing.T) { sessions(t, "storms") }

func sessions(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.session"))
	must(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(strings.TrimSuffix(name, ".session"), func(t *testing.T) {
			inShop(t, func(s *shop) { s.session(filepath.Join("..", dir, name)) })
		})
	}
}

// session types the lines of a file that begin with "$ ", and compares what they
// print with the file.
func (s *shop) session(name string) {
	file := filepath.Join(s.golden, name)
	var all strings.Builder
	defer func() {
		for _, stop := range s.stops {
			stop()
		}
	}()
	for line := range strings.Lines(goldentest.Read(s, file)) {
		if typed, ok := strings.CutPrefix(line, "$ "); ok {
			printed := s.types(wordsOf(strings.TrimSuffix(typed, "\n"))...)
			fmt.Fprintf(&all, "%s%s\n", line, strings.ReplaceAll(printed, whoami(), "me@here"))
		}
	}
	goldentest.File(s, file, all.String())
}

// types returns what is to be seen of a line of a session.
func (s *shop) types(words ...string) string { return s.verbs()[words[0]](words[1:]) }

// prints returns what a command prints, none of which a terminal obeys.
func (s *shop) prints(ctx context.Context, args []string) string {
	got := s.callWith(ctx, args...)
	out := got.stdout + got.stderr
	if strings.Contains(out, secret) {
		s.Errorf("%q prints a secret: %s", args, out)
	}
	if !s.streams.Colour && text.Lines(out) != out {
		s.Errorf("%q prints characters that a terminal obeys: %q", args, out)
	}
	if slices.Contains(args, "json") && got.stdout != "" && !json.Valid([]byte(got.stdout)) {
		s.Errorf("%q prints what is no JSON: %s", args, got.stdout)
	}
	table := args[0] == "dlq" && slices.Contains([]string{"groups", "ls", "show"}, args[1]) && !slices.Contains(args, "json")
	for line := range strings.Lines(got.stdout) {
		if n := len([]rune(line)) - 1; table && !s.streams.Colour && n > s.streams.Width {
			s.Errorf("%q prints a line of %d columns: %s", args, n, line)
		}
	}
	if got.code != exitOK {
		out += fmt.Sprintf("(exit code %d)\n", got.code)
	}
	return out
}

// verbs are what may be typed in a session: a command, and what happens around it.
func (s *shop) verbs() map[string]func(args []string) string {
	redrive := func(args []string) string {
		out := strings.ReplaceAll(s.prints(s.Context(), args), "went wrong (1 failing)", "went wrong (1 returned)") // which of two receipts of one moment is read first
		return drawn.ReplaceAllString(out, "$1")
	}
	number := func(word string) int {
		n, err := strconv.Atoi(word)
		must(s, err)
		return n
	}
	lines := strings.NewReplacer(`\n`, "\n")
	configure := func(text string) {
		must(s, os.WriteFile(config.DefaultFile, []byte(lines.Replace(text)), 0o600))
	}
	silently := func(do func(args []string)) func([]string) string {
		return func(args []string) string { do(args); return "" }
	}
	return map[string]func(args []string) string{
		"redrive": redrive,
		"exactly": func(args []string) string { return s.prints(s.Context(), args[1:]) }, // to the second
		"interrupt": func(args []string) string { // after a second
			ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errInterrupted)
			defer cancel()
			return s.prints(ctx, args[1:])
		},
		"within": func(args []string) string { // 40 seconds
			began := time.Now()
			defer func() {
				if took := time.Since(began); took > 40*time.Second {
					s.Errorf("%q took %v", args, took)
				}
			}()
			return redrive(args[1:])
		},
		"wait": silently(func(args []string) {
			d, err := time.ParseDuration(args[0])
			must(s, err)
			time.Sleep(d) // which the session has in its text, as a user would wait
		}),
		"answer": silently(func(args []string) { s.streams.Asks, s.streams.In = true, strings.NewReader(args[0]+"\n") }),
		"screen": silently(func([]string) { s.streams.Colour, s.streams.Width = true, 60 }),
		"config": silently(func(args []string) { configure(args[0]) }),
		"copy": silently(func(args []string) { // a file of testdata
			must(s, os.WriteFile(args[1], []byte(goldentest.Read(s, filepath.Join(s.golden, "..", args[0]))), 0o600))
		}),
		"edit": silently(func(args []string) {
			configure(strings.Replace(goldentest.Read(s, config.DefaultFile), lines.Replace(args[0]), args[1], 1))
		}),
		"remove": silently(func(args []string) { must(s, os.Remove(args[0])) }),
		"files": func([]string) string {
			files, err := filepath.Glob("*")
			must(s, err)
			return strings.Join(files, " ") + "\n"
		},
		"clinic": silently(func([]string) { s.clinic() }),
		"finds":  silently(func(args []string) { s.finds(args[0], args[1:]...) }),
		"fails":  silently(func(args []string) { s.inspect[args[0]] = isDown }),
		"blind":  silently(func(args []string) { delete(s.inspect, args[0]) }),
		"set":    silently(func(args []string) { s.Setenv(args[0], args[1]) }),
		"fill":   silently(func([]string) { s.fill() }),
		"dead": silently(func(args []string) { // so many letters of a topic
			s.dead(brokerOf[args[0]], args[0], number(args[1]))
		}),
		"publish": silently(func(args []string) { s.publish(args[0], number(args[1]), number(args[2])) }),
		"leave":   silently(func(args []string) { s.leave(number(args[0])) }),
		"down":    silently(func(args []string) { s.down[args[0]] = errors.New("connection refused") }),
		"up":      silently(func(args []string) { delete(s.down, args[0]) }),
		"refuse": silently(func(args []string) { // these messages
			s.fault = func(op memory.Op) (f memory.Fault) {
				if op.Operation == memory.Publish && slices.Contains(args, op.ID) {
					f.Err = errors.New("the disk of the broker is full")
				}
				return f
			}
		}),
		"ids": func(flags []string) string { // of the letters that flags select
			var rows []letterRow
			must(s, json.Unmarshal([]byte(s.call(append([]string{"dlq", "ls", "-o", "json"}, flags...)...).stdout), &rows))
			var ids []int64
			for _, row := range rows {
				ids = append(ids, row.ID)
			}
			return fmt.Sprintln(ids)
		},
		"ready": func(args []string) string { return fmt.Sprintln(s.brokers["shop"].Stats(args[0]).Ready) },
		"work": silently(func(args []string) {
			w, stop := s.work(brokerOf[args[0]], args[0])
			s.worker, s.stops = w, append(s.stops, stop)
		}),
		"serve": silently(func([]string) { s.stops = append(s.stops, s.serve()) }),
		"break": silently(func([]string) { s.worker.set(bad) }),
		"mend":  silently(func([]string) { s.worker.set(good) }),
		"runs":  func([]string) string { return fmt.Sprintln(s.worker.ran()) },
		"audit": func([]string) string {
			return strings.ReplaceAll(strings.Join(s.acts(), "\n")+"\n", whoami()+" ", "the job ")
		},
		"states": func(args []string) (states string) {
			for _, id := range args {
				l, history := s.letter(int64(number(id)))
				states += fmt.Sprintf("%d: %s, %q, by %q\n", l.ID, l.State, l.Note, history[len(history)-1].Actor.Who)
			}
			return states
		},
	}
}
