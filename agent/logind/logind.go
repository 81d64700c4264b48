package logind

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/hashicorp/go-hclog"
)

const (
	service   = "org.freedesktop.login1"
	manager   = service + ".Manager"
	path      = dbus.ObjectPath("/org/freedesktop/login1")
	signal    = "PrepareForShutdown"
	askAgain  = 5 * time.Second
	callLimit = 5 * time.Second
)

// Options say what is to happen.
type Options struct {
	// Address is the bus's; empty: the system's.
	Address string
	// Grace is how long the pods may take.
	Grace time.Duration
	// Down is called when the machine is about to end, with the time that there is; the machine waits for its return. Back is called
	// when the machine is not to end after all.
	Down   func(ctx context.Context, within time.Duration)
	Back   func()
	Logger hclog.Logger
}

// Run watches until ctx ends. Where there is no logind it says so, and looks again later.
func Run(ctx context.Context, o Options) {
	told := ""
	for {
		err := watch(ctx, &o)
		if ctx.Err() != nil {
			return
		}
		if text := fmt.Sprint(err); text != told {
			told = text
			o.Logger.Warn("the machine does not wait for its pods when it ends: systemd's logind is asked again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(askAgain):
		}
	}
}

func connect(ctx context.Context, address string) (*dbus.Conn, error) {
	if address == "" {
		return dbus.ConnectSystemBus(dbus.WithContext(ctx))
	}
	return dbus.Connect(address, dbus.WithContext(ctx))
}

// watch is one connection to the bus.
func watch(ctx context.Context, o *Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := connect(ctx, o.Address)
	if err != nil {
		return fmt.Errorf("the bus: %w", err)
	}
	defer func() { _ = conn.Close() }()
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchObjectPath(path), dbus.WithMatchInterface(manager), dbus.WithMatchMember(signal)); err != nil {
		return err
	}
	within, err := allowed(ctx, conn, o)
	if err != nil {
		return err
	}
	hold, err := inhibit(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { release(hold) }()
	o.Logger.Info("the machine waits for its pods when it ends", "within", within)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s, ok := <-signals:
			if !ok {
				return errors.New("the bus has ended the connection")
			}
			if s.Name != manager+"."+signal || len(s.Body) != 1 {
				continue
			}
			if going, _ := s.Body[0].(bool); !going {
				if release(hold); hold >= 0 {
					hold = -1
				}
				o.Back()
				if hold, err = inhibit(ctx, conn); err != nil {
					return err
				}
				continue
			}
			o.Down(ctx, within)
			release(hold)
			hold = -1
		}
	}
}

// allowed is for how long logind lets anybody hold the machine's end up.
func allowed(ctx context.Context, conn *dbus.Conn, o *Options) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var value dbus.Variant
	err := conn.Object(service, path).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, "InhibitDelayMaxUSec").Store(&value)
	if err != nil {
		return 0, fmt.Errorf("asking logind for how long it waits: %w", err)
	}
	micro, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("logind says that it waits for %v", value)
	}
	most := time.Duration(min(micro, uint64(time.Hour/time.Microsecond)*24)) * time.Microsecond
	if most < o.Grace {
		o.Logger.Warn("logind lets the machine's end wait for less than worker.shutdown_grace: set InhibitDelayMaxSec in its configuration",
			"waits", most, "shutdown_grace", o.Grace)
		return most, nil
	}
	return o.Grace, nil
}

// inhibit takes what keeps the machine from ending: a descriptor, until it is closed.
func inhibit(ctx context.Context, conn *dbus.Conn) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var fd dbus.UnixFD
	err := conn.Object(service, path).CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", "berth", "the node's pods end first", "delay").Store(&fd)
	if err != nil {
		return -1, fmt.Errorf("asking logind to wait for the pods: %w", err)
	}
	return int(fd), nil
}

func release(fd int) {
	if fd >= 0 {
		_ = syscall.Close(fd) // it was open
	}
}
