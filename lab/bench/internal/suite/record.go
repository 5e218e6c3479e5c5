package suite

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Record runs a command for go test -exec. If it is a test binary, Record appends
// its directory, the processor time that it used, and the most memory that was its
// own at a time, to file. It returns the exit code. Other programs, which go run starts, take the place of this one.
func Record(file string, command []string) int {
	code, err := record(file, command)
	if err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		return 1
	}
	return code
}

func record(file string, command []string) (int, error) {
	if len(command) == 0 {
		return 0, errors.New("no command to run")
	}
	if !strings.HasSuffix(command[0], ".test") {
		return 0, syscall.Exec(command[0], command, os.Environ())
	}
	c := exec.Command(command[0], command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	if err := c.Start(); err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			c.Process.Signal(s)
		}
	}()
	err := c.Wait()
	signal.Stop(signals)
	close(signals)
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	dir, err := os.Getwd() // go test runs a binary in the directory of its package
	_, e := fmt.Fprintln(out, int64(c.ProcessState.UserTime()+c.ProcessState.SystemTime()), peak(c.ProcessState), dir)
	code := c.ProcessState.ExitCode()
	if code < 0 {
		code = 2 // ended by a signal
	}
	return code, errors.Join(err, e, out.Close())
}

// Use is what the tests in Dir used: processor time, and bytes of memory at most.
type Use struct {
	Dir  string
	Time time.Duration
	Peak int64
}

// Recorded returns what Record wrote to file, the most time first, the runs of a
// directory together.
func Recorded(file string) ([]Use, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	byDir := map[string]Use{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var u Use
		if _, err := fmt.Sscan(lines.Text(), (*int64)(&u.Time), &u.Peak); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		u.Dir = strings.SplitN(lines.Text(), " ", 3)[2]
		u.Time += byDir[u.Dir].Time
		u.Peak = max(u.Peak, byDir[u.Dir].Peak)
		byDir[u.Dir] = u
	}
	uses := slices.Collect(maps.Values(byDir))
	slices.SortFunc(uses, func(a, b Use) int { return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Dir, b.Dir)) })
	return uses, lines.Err()
}
