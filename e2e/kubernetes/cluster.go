package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	clusterStart = 2 * time.Minute
	clusterStop  = 30 * time.Second
	startPoll    = 100 * time.Millisecond
)

// cluster is a running development cluster of the real binary.
type cluster struct {
	kubeconfig string
	cmd        *exec.Cmd
	exited     chan struct{}
	log        string
}

// startCluster starts three servers and the workers in one process, on loopback
// ports that are free, and returns when all nodes are ready.
func startCluster(ctx context.Context, binary, dir string, workers int) (*cluster, error) {
	c := &cluster{
		kubeconfig: filepath.Join(dir, "kubeconfig"),
		log:        filepath.Join(dir, "berth.log"),
		exited:     make(chan struct{}),
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	// The file is the sign that the cluster is ready: one of an earlier run
	// would say so too soon.
	if err := os.Remove(c.kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own
	c.cmd = exec.Command(binary, "dev", "--servers", "3", "--workers", strconv.Itoa(workers), "--runtime", "fake",
		"--nodes-cpu", "8", "--nodes-memory", "32Gi", "--verbose", "--no-switch",
		"--cli-config", filepath.Join(dir, "cli.hcl"), "--kubeconfig", c.kubeconfig)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	// An interrupt of the terminal ends the tests first, and then the cluster.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.exited)
		_ = c.cmd.Wait() // how it ended is in its log
	}()
	if err := c.waitReady(ctx); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// versionOf asks the binary what it is. It says so after the last space of its
// first line.
func versionOf(ctx context.Context, binary string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, "version", "--client").Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", binary, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first[strings.LastIndexByte(first, ' ')+1:], nil
}

func (c *cluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clusterStart)
	defer cancel()
	for {
		if _, err := os.Stat(c.kubeconfig); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it was not ready in time: %w; its log is %s", ctx.Err(), c.log)
		case <-c.exited:
			log, _ := os.ReadFile(c.log) // what can not be read is not shown
			return fmt.Errorf("it ended by itself:\n%s", log)
		case <-time.After(startPoll):
		}
	}
}

// stop ends the cluster, politely first.
func (c *cluster) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-c.exited:
		return nil
	case <-time.After(clusterStop):
	}
	_ = c.cmd.Process.Kill() // as above
	<-c.exited
	return fmt.Errorf("the cluster did not stop within %s", clusterStop)
}
