package transship;

import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarCharVector;

/**
 * A column of texts as its distinct values and, for each row, an index into them, which counts from 0 and is NULL if the row is. A function
 * with batch = "arrow" whose result travels as text may return it, if many rows have the same text. The server closes both vectors.
 */
public record Encoded(IntVector indexes, VarCharVector values) {}
