package model

// Usage is what a set of pods occupies on a node. It is immutable: With and Without return a new one and may share
// slices with the old.
type Usage struct {
	Requested Resources
	NonZero   Resources
	Ports     UsedPorts
}

// With returns the usage with one more pod of class c.
func (u Usage) With(c *Class) Usage {
	return Usage{
		Requested: u.Requested.Add(c.Request),
		NonZero:   u.NonZero.Add(c.NonZero),
		Ports:     u.Ports.With(c.Ports),
	}
}

// Without returns the usage with one pod of class c less.
func (u Usage) Without(c *Class) Usage {
	return Usage{
		Requested: u.Requested.Sub(c.Request),
		NonZero:   u.NonZero.Sub(c.NonZero),
		Ports:     u.Ports.Without(c.Ports),
	}
}

// Toward returns the usage as far as it matters to a class: of the ports only those that conflict with its own. A node may
// have thousands of others, among which every Without looks for its own.
func (u Usage) Toward(c *Class) Usage {
	u.Ports = u.Ports.Toward(c.Ports)
	return u
}

// Plus returns the usage of both sets of pods together.
func (u Usage) Plus(b Usage) Usage {
	return Usage{
		Requested: u.Requested.Add(b.Requested),
		NonZero:   u.NonZero.Add(b.NonZero),
		Ports:     u.Ports.Plus(b.Ports),
	}
}
