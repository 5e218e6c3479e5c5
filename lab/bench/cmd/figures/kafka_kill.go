package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/lab/bench/kafka"
)

// victimEnv makes this command a worker that may be killed. It is the address
// of the broker, the group and the topic, with spaces in between.
const victimEnv = "REDRIVE_FIGURES_VICTIM"

// runVictim is a worker whose messages fail once. It writes the number of each
// that it handles for good, which reaches the parent even if the worker dies
// next.
func runVictim(job string) {
	words := strings.Fields(job)
	if len(words) != 3 {
		fmt.Fprintf(os.Stderr, "figures: %s is %q\n", victimEnv, job)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w := &kafka.World{Options: adapter.Options{Brokers: strings.Split(words[0], ","), Group: words[1], SessionTimeout: 6 * time.Second}}
	err := contender.Work(ctx, w, kafkaLater, func(ctx context.Context, m *brokers.Message) error {
		if consumer.MetaFrom(ctx).Attempt == 1 {
			return errBusy
		}
		_, err := fmt.Fprintln(os.Stdout, contender.Number(m.Body))
		return err
	}, words[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// killed kills a worker in the middle of 100,000 outstanding retries, and
// counts what the next one handles again.
func (s *kafkaSession) killed(ctx context.Context, samples *figure.Samples) error {
	s.world.NextGroup()
	topics, err := s.world.Fill(ctx, kafkaOutstanding, "killed")
	if err != nil {
		return err
	}
	job := strings.Join([]string{strings.Join(s.world.Options.Brokers, ","), s.world.Options.Group, topics[0]}, " ")
	times := make([]int, kafkaOutstanding)
	handled := 0
	var at []time.Time // of the first worker
	count := func(number int) {
		if times[number]++; times[number] == 1 {
			handled++
		}
	}
	err = victim(ctx, job, func(number int) (enough bool) {
		count(number)
		at = append(at, time.Now())
		return handled == kafkaOutstanding/2
	})
	if err != nil {
		return err
	}
	killedAt := at[len(at)-1]
	if err := victim(ctx, job, func(number int) bool { count(number); return handled == kafkaOutstanding }); err != nil {
		return fmt.Errorf("%d of %d were handled: %w", handled, kafkaOutstanding, err)
	}
	repeated, second := 0, 0
	for _, n := range times {
		repeated += n - 1
	}
	for _, t := range at {
		if killedAt.Sub(t) <= time.Second {
			second++
		}
	}
	figure.Note("killed after %d, of which %d in the last second; %d were handled again, %.2f %% of those done",
		len(at), second, repeated, 100*float64(repeated)/float64(len(at)))
	samples.Goal("kafka_repeated_after_kill", float64(second))
	samples.Add("kafka_repeated_after_kill", float64(repeated))
	return nil
}

// victim runs a worker until it has handled enough, and kills it: what it
// handles until it is dead counts too.
func victim(ctx context.Context, job string, handled func(number int) (enough bool)) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	worker := exec.CommandContext(ctx, program)
	worker.Env = append(os.Environ(), victimEnv+"="+job)
	worker.Stderr = os.Stderr
	out, err := worker.StdoutPipe()
	if err != nil {
		return err
	}
	if err := worker.Start(); err != nil {
		return err
	}
	killed := false
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		number, err := strconv.Atoi(lines.Text())
		if err != nil {
			return errors.Join(err, worker.Process.Kill(), worker.Wait())
		}
		if handled(number) && !killed {
			killed = true
			if err := worker.Process.Kill(); err != nil {
				return err
			}
		}
	}
	if err := worker.Wait(); !killed {
		return fmt.Errorf("the worker ended by itself: %w", errors.Join(err, ctx.Err()))
	}
	return nil
}
