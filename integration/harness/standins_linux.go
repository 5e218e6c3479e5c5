package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// StandIns builds images of the names in docker-compose.yml from packages, for
// an engine that can pull none. An image that the engine has stays as it is.
func StandIns(ctx context.Context, log io.Writer, brokers []Broker) error {
	h, err := newHarness(log)
	if err != nil {
		return err
	}
	return h.locked(func() error {
		for _, b := range brokers {
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
	l := &local{temporary: os.TempDir(), cache: h.cache, log: h.log}
	switch b.Product {
	case Kafka:
		return kafka{java{l}}.standIn(ctx, b)
	case SQS:
		return elasticmq{java{l}}.standIn(ctx, b)
	case Redis:
		return redis{l}.standIn(ctx, b)
	}
	root, err := debian{l}.fetch(ctx, b)
	if err != nil {
		return err
	}
	return h.load(ctx, b.Image, []string{"--directory", root, "."}, []string{ // what the official images say of themselves, as far as compose sees it
		"ENV PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/var/lib/rabbitmq LANG=C.UTF-8 RABBITMQ_LOGS=-",
		"USER rabbitmq",
		"VOLUME /var/lib/rabbitmq",
		"EXPOSE 5672 15672",
		`CMD ["rabbitmq-server"]`,
	})
}

// javaSuite is the Debian release whose Java the stand-ins of brokers in Java
// have.
const javaSuite = "trixie"

// launchKafka is what a stand-in runs. As in the official images, a program of
// Kafka itself makes the settings of the mounted file and the environment, and
// formats the folder of the data, which it refuses to do twice.
const launchKafka = `#!/bin/bash
set -e
setup=(kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker
	--mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config)
said=$(java -cp '/opt/kafka/libs/*' "${setup[@]}" 2>&1) || grep -i 'already formatted' <<<"$said" || { echo "$said"; exit 1; }
exec java $KAFKA_HEAP_OPTS $KAFKA_JVM_PERFORMANCE_OPTS -Dlog4j.configuration=file:/etc/kafka/docker/log4j.properties \
	-Dlog4j2.configurationFile=/etc/kafka/docker/log4j2.properties -cp '/opt/kafka/libs/*' kafka.Kafka /opt/kafka/config/server.properties
`

// layers returns the files of an image, as tar is told: the artifacts, in the
// folder libs of the image, on top of a minimal Debian with Java.
func (j java) layers(ctx context.Context, b Broker, libs string) ([]string, error) {
	root := filepath.Join(j.cache, javaSuite+"-java")
	if _, err := os.Stat(root); err != nil {
		fmt.Fprintf(j.log, "%s: fetching Debian %s with Java to %s (once, about 500 MB, a minute or two)\n", b.Name, javaSuite, root)
		if err := bootstrap(ctx, b, javaSuite, "default-jre-headless", root); err != nil {
			return nil, err
		}
	}
	artifacts, err := j.artifacts(ctx, b)
	if err != nil {
		return nil, err
	}
	jars := filepath.Base(artifacts)
	return []string{
		"--transform", "s,^" + jars + "," + libs + ",",
		"--directory", root, ".",
		"--directory", j.cache, jars,
	}, nil
}

func (k kafka) standIn(ctx context.Context, b Broker) error {
	files, err := k.layers(ctx, b, "opt/kafka/libs")
	if err != nil {
		return err
	}
	layer, err := kafkaLayer(k.temporary)
	if err != nil {
		return err
	}
	defer os.RemoveAll(layer)
	files = append(files, "--directory", layer, "etc/kafka", "opt/kafka/config", "mnt/shared", "var/lib/kafka")
	h := &Harness{cache: k.cache, log: k.log}
	return h.load(ctx, b.Image, files, []string{
		"ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
		"USER 1000:1000",
		`VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]`,
		"EXPOSE 9092",
		`CMD ["/etc/kafka/docker/run"]`,
	})
}

// kafkaLayer makes the files and folders that an image of Kafka has besides.
func kafkaLayer(temporary string) (layer string, err error) {
	layer, err = os.MkdirTemp(temporary, "redrive-standin-")
	if err != nil {
		return "", err
	}
	for _, dir := range []string{"etc/kafka/docker", "etc/kafka/secrets", "opt/kafka/config", "mnt/shared/config", "var/lib/kafka/data"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(layer, dir), 0o755), os.Chown(filepath.Join(layer, dir), 1000, 1000))
	}
	defaults := filepath.Join(layer, "etc/kafka/docker")
	err = errors.Join(err,
		writeSettings(defaults, map[string]string{
			"java/log4j.properties":  "log4j.properties",
			"java/log4j2.properties": "log4j2.properties",
		}, map[string]string{"run": launchKafka, "log4j2.yaml": "Configuration:\n", "tools-log4j2.yaml": "Configuration:\n", "tools-log4j.properties": ""}),
		os.Chmod(filepath.Join(defaults, "run"), 0o755))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(layer))
	}
	return layer, nil
}

// askHealth is the wget of a stand-in: as much of it as a health check needs,
// with the URL as its last argument.
const askHealth = `#!/bin/bash
for url; do :; done
address=${url#http://}
path=/${address#*/}
address=${address%%/*}
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$path" "$address" >&3
read -r _ status _ <&3
test "$status" = 200
`

// standIn makes an ElasticMQ that runs in Java, where the official image has a
// program of its own. It reads its settings in the same place.
func (e elasticmq) standIn(ctx context.Context, b Broker) error {
	files, err := e.layers(ctx, b, "opt/elasticmq/libs")
	if err != nil {
		return err
	}
	layer, err := os.MkdirTemp(e.temporary, "redrive-standin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(layer)
	bin := filepath.Join(layer, "usr/local/bin")
	err = errors.Join(os.MkdirAll(bin, 0o755), writeSettings(bin, nil, map[string]string{"wget": askHealth}), os.Chmod(filepath.Join(bin, "wget"), 0o755))
	if err != nil {
		return err
	}
	h := &Harness{cache: e.cache, log: e.log}
	return h.load(ctx, b.Image, append(files, "--directory", layer, "usr/local/bin/wget"), []string{
		"ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
		"VOLUME /data",
		"EXPOSE 9324",
		`ENTRYPOINT ["java", "-Xmx512m", "-Dconfig.file=/opt/elasticmq.conf", "-Dlogback.configurationFile=/opt/logback.xml", "-cp", "/opt/elasticmq/libs/*", "org.elasticmq.server.Main"]`,
	})
}

// load makes an image of the files, named as tar is told, and what it says of
// itself.
func (h *Harness) load(ctx context.Context, image string, files, says []string) error {
	pack := exec.CommandContext(ctx, "tar", append([]string{"--create", "--one-file-system"}, files...)...)
	args := []string{"import"}
	for _, change := range says {
		args = append(args, "--change", change)
	}
	load := exec.CommandContext(ctx, "docker", append(args, "-", image)...)
	pack.Stderr, load.Stderr, load.Stdout = h.log, h.log, h.log
	var err error
	if load.Stdin, err = pack.StdoutPipe(); err != nil {
		return err
	}
	if err := pack.Start(); err != nil {
		return err
	}
	loaded := load.Run()
	return errors.Join(loaded, pack.Wait())
}
