package model

// Usage is what a set of pods occupies on a node. It is immutable: With and Without return a new one and may share
// slices with the old.
type Usage struct {
	Requested Resources
	NonZero   Resources
	Ports     []HostPort // sorted, repetitions kept, nil when there are none
}

// With returns the usage with one more pod of class c.
func (u Usage) With(c *Class) Usage {
	return Usage{
		Requested: u.Requested.Add(c.Request),
		NonZero:   u.NonZero.Add(c.NonZero),
		Ports:     addPorts(u.Ports, c.Ports),
	}
}

// Without returns the usage with one pod of class c less.
func (u Usage) Without(c *Class) Usage {
	return Usage{
		Requested: u.Requested.Sub(c.Request),
		NonZero:   u.NonZero.Sub(c.NonZero),
		Ports:     removePorts(u.Ports, c.Ports),
	}
}

// Toward returns the usage as far as it matters to a class: of the ports only those that conflict with its own. A node may
// have thousands of others, which every With and Without copies.
func (u Usage) Toward(c *Class) Usage {
	u.Ports = contending(u.Ports, c.Ports)
	return u
}

// Plus returns the usage of both sets of pods together.
func (u Usage) Plus(b Usage) Usage {
	return Usage{
		Requested: u.Requested.Add(b.Requested),
		NonZero:   u.NonZero.Add(b.NonZero),
		Ports:     addPorts(u.Ports, b.Ports),
	}
}
