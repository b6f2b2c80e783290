package transship;

/** A span of time in PostgreSQL's parts. */
public record Interval(int months, int days, long nanoseconds) {}
