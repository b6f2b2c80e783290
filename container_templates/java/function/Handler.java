import java.io.Serializable;
import java.util.Arrays;
import java.util.stream.Stream;

/** The handler: static methods are functions; addOne answers add_one. */
public final class Handler {
    private Handler() {}

    /** One row at a time; null is NULL. */
    public static Long addOne(Long x) {
        return x == null ? null : x + 1;
    }

    /** A whole batch at a time (batch = "columns" in transship.toml). */
    public static double[] hypotenuse(double[] a, double[] b) {
        double[] results = new double[a.length];
        for (int row = 0; row < a.length; row++) results[row] = Math.hypot(a[row], b[row]);
        return results;
    }

    /** A table function: any number of results for each row. */
    public static Stream<String> words(String text) {
        return Arrays.stream(text.split("\\s+")).filter(word -> !word.isEmpty());
    }

    /** An aggregate function: an instance per group of rows. */
    public static final class Longest implements Serializable {
        private static final long serialVersionUID = 1;
        private String text;

        public void step(String other) {
            if (other != null && (text == null || other.length() > text.length())) text = other;
        }

        /** Lets queries run in parallel. */
        public void merge(Longest other) {
            step(other.text);
        }

        public String finish() {
            return text;
        }
    }
}
