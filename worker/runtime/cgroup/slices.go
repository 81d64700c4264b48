package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-dev/berth/worker/runtime"
)

// Slices are cgroups of version 2 that systemd makes, under the names that a Tree's have: a/b below the parent p is the unit
// p-a-b.slice. What systemd is not asked for it takes away again.
type Slices struct {
	Parent string
}

// slicesLimit is how long systemd may take for one thing.
const slicesLimit = 30 * time.Second

// Slice is the name of a cgroup's unit.
func Slice(group string) string {
	parts := strings.Split(strings.Trim(group, "/"), "/")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "-", "_")
	}
	return strings.Join(parts, "-") + ".slice"
}

func (s *Slices) unit(name string) string { return Slice(path.Join(s.Parent, name)) }

// Path is a cgroup's directory below the root: those above it are the units that its name begins with.
func (s *Slices) Path(name string) string {
	parts := strings.Split(strings.TrimSuffix(s.unit(name), ".slice"), "-")
	out := ""
	for i := range parts {
		out = filepath.Join(out, strings.Join(parts[:i+1], "-")+".slice")
	}
	return out
}

// Create makes a cgroup, or changes the one that there is.
func (s *Slices) Create(name string, r *specs.LinuxResources) error {
	return s.ask("making", name, func(ctx context.Context, c *systemd.Conn) error {
		properties := append(propertiesOf(r), systemd.PropDescription("pods of Berth"), property("DefaultDependencies", false))
		err := await(ctx, func(done chan<- string) (int, error) {
			return c.StartTransientUnitContext(ctx, s.unit(name), "replace", properties, done)
		})
		if isError(err, "org.freedesktop.systemd1.UnitExists") {
			return c.SetUnitPropertiesContext(ctx, s.unit(name), true, propertiesOf(r)...)
		}
		return err
	})
}

// Update changes what the processes of a cgroup may have. What is not said stays as it is.
func (s *Slices) Update(name string, r *specs.LinuxResources) error {
	return s.ask("changing", name, func(ctx context.Context, c *systemd.Conn) error {
		return c.SetUnitPropertiesContext(ctx, s.unit(name), true, propertiesOf(r)...)
	})
}

// Kill ends every process in a cgroup and below it, as a Tree does.
func (s *Slices) Kill(name string) (int, error) { return s.tree().Kill(s.Path(name)) }

// Use is what the processes of a cgroup and those below it use, as with a Tree.
func (s *Slices) Use(name string) (runtime.Counted, error) { return s.tree().Use(s.Path(name)) }

// RemoveAll ends a cgroup's unit, and with it those below it.
func (s *Slices) RemoveAll(name string) error {
	return s.ask("removing", name, func(ctx context.Context, c *systemd.Conn) error {
		err := await(ctx, func(done chan<- string) (int, error) {
			return c.StopUnitContext(ctx, s.unit(name), "replace", done)
		})
		if isError(err, "org.freedesktop.systemd1.NoSuchUnit") {
			return nil
		}
		return err
	})
}

func (s *Slices) tree() *Tree { return &Tree{Parent: "/", Unified: true} }

func (s *Slices) ask(doing, name string, what func(ctx context.Context, c *systemd.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), slicesLimit)
	defer cancel()
	c, err := systemd.NewWithContext(ctx)
	if err == nil {
		defer c.Close()
		err = what(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("%s %s by systemd: %w", doing, s.unit(name), err)
	}
	return nil
}

// await begins a job of systemd's, and waits for its end.
func await(ctx context.Context, begin func(done chan<- string) (int, error)) error {
	done := make(chan string, 1)
	if _, err := begin(done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("it came to %q", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isError(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == name
}

func property(name string, value any) systemd.Property {
	return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// propertiesOf are what systemd calls the resources. It counts a quota in hundredths of a processor.
func propertiesOf(r *specs.LinuxResources) []systemd.Property {
	out := []systemd.Property{property("CPUAccounting", true), property("MemoryAccounting", true), property("TasksAccounting", true)}
	if r.CPU != nil && r.CPU.Shares != nil {
		out = append(out, property("CPUWeight", cgroup2.ConvertCPUSharesToCgroupV2Value(*r.CPU.Shares)))
	}
	if r.CPU != nil && r.CPU.Quota != nil {
		const second, hundredth = 1_000_000, 10_000
		perSecond := (uint64(*r.CPU.Quota)*second/PeriodMicros + hundredth - 1) / hundredth * hundredth
		if *r.CPU.Quota <= 0 {
			perSecond = math.MaxUint64
		}
		out = append(out, property("CPUQuotaPerSecUSec", perSecond))
	}
	if r.Memory != nil && r.Memory.Limit != nil {
		out = append(out, property("MemoryMax", uint64(*r.Memory.Limit)))
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		out = append(out, property("TasksMax", uint64(*r.Pids.Limit)))
	}
	return out
}
