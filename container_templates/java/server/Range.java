package transship;

/** A range; a bound that is null is infinite. */
public record Range<T>(T lower, T upper, boolean lowerInc, boolean upperInc, boolean empty) {}
