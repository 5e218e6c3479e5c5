package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// StandIns builds images of the names in docker-compose.yml from packages, for
// an engine that can pull none. An image that the engine has stays as it is.
func StandIns(ctx context.Context, log io.Writer) error {
	h, err := newHarness(log)
	if err != nil {
		return err
	}
	return h.locked(func() error {
		for _, b := range Brokers() {
			if err := h.standIn(ctx, b); err != nil {
				return fmt.Errorf("build %s: %w", b.Image, err)
			}
		}
		return nil
	})
}

func (h *Harness) standIn(ctx context.Context, b Broker) error {
	if exec.CommandContext(ctx, "docker", "image", "inspect", b.Image).Run() == nil {
		fmt.Fprintln(h.log, b.Image, "is there already")
		return nil
	}
	engine, err := newLocal(h.cache, h.log)
	if err != nil {
		return err
	}
	root, err := engine.(*local).fetch(ctx, b)
	if err != nil {
		return err
	}
	pack := exec.CommandContext(ctx, "tar", "--create", "--one-file-system", "--directory", root, ".")
	args := []string{"import"}
	for _, change := range []string{ // what the official images say of themselves, as far as compose sees it
		"ENV PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/var/lib/rabbitmq LANG=C.UTF-8 RABBITMQ_LOGS=-",
		"USER rabbitmq",
		"VOLUME /var/lib/rabbitmq",
		"EXPOSE 5672 15672",
		`CMD ["rabbitmq-server"]`,
	} {
		args = append(args, "--change", change)
	}
	load := exec.CommandContext(ctx, "docker", append(args, "-", b.Image)...)
	pack.Stderr, load.Stderr, load.Stdout = h.log, h.log, h.log
	if load.Stdin, err = pack.StdoutPipe(); err != nil {
		return err
	}
	if err := pack.Start(); err != nil {
		return err
	}
	loaded := load.Run()
	return errors.Join(loaded, pack.Wait())
}
