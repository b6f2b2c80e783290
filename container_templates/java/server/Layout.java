package transship.server;

import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseVariableWidthViewVector;
import org.apache.arrow.vector.ExtensionTypeVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VariableWidthFieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.LargeListVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * What the schema of a client's calls says of its layout (docs/protocol.md §4.1): large offsets for text, bytes and lists, and
 * views of text and bytes. OWN is the protocol's own.
 */
record Layout(boolean hasLargeText, boolean hasLargeLists, boolean hasViews) {
    static final Layout OWN = new Layout(false, false, false);
    private static final long MAX_COLUMN_BYTES = 1 << 30;

    static Layout of(Schema schema) {
        return OWN.with(schema.getFields());
    }

    private Layout with(List<Field> fields) {
        Layout found = this;
        for (Field field : fields) {
            ArrowType type = field.getType();
            found = new Layout(
                found.hasLargeText || type instanceof ArrowType.LargeUtf8 || type instanceof ArrowType.LargeBinary,
                found.hasLargeLists || type instanceof ArrowType.LargeList,
                found.hasViews || type instanceof ArrowType.Utf8View || type instanceof ArrowType.BinaryView).with(field.getChildren());
        }
        return found;
    }

    /** The schema of a reply, in the client's layout. Where the client has both, text and bytes are views. */
    Schema schema(Schema own) {
        return new Schema(own.getFields().stream().map(this::toClient).toList(), own.getCustomMetadata());
    }

    private Field toClient(Field field) {
        ArrowType type = field.getType();
        if (hasViews && type instanceof ArrowType.Utf8) type = ArrowType.Utf8View.INSTANCE;
        else if (hasViews && type instanceof ArrowType.Binary) type = ArrowType.BinaryView.INSTANCE;
        else if (hasLargeText && type instanceof ArrowType.Utf8) type = ArrowType.LargeUtf8.INSTANCE;
        else if (hasLargeText && type instanceof ArrowType.Binary) type = ArrowType.LargeBinary.INSTANCE;
        else if (hasLargeLists && type instanceof ArrowType.List) type = ArrowType.LargeList.INSTANCE;
        return withType(field, type, field.getChildren().stream().map(this::toClient).toList());
    }

    private static Field toOwn(Field field) {
        ArrowType type = field.getType();
        if (type instanceof ArrowType.LargeUtf8 || type instanceof ArrowType.Utf8View) type = ArrowType.Utf8.INSTANCE;
        else if (type instanceof ArrowType.LargeBinary || type instanceof ArrowType.BinaryView) type = ArrowType.Binary.INSTANCE;
        else if (type instanceof ArrowType.LargeList) type = ArrowType.List.INSTANCE;
        return withType(field, type, field.getChildren().stream().map(Layout::toOwn).toList());
    }

    private static Field withType(Field field, ArrowType type, List<Field> children) {
        return new Field(field.getName(), new FieldType(field.isNullable(), type, field.getDictionary(), field.getMetadata()), children);
    }

    /** The client's batch in the protocol's layout, which the caller closes. The values leave the batch. */
    static VectorSchemaRoot read(VectorSchemaRoot calls, BufferAllocator allocator) throws CallError {
        Schema schema = calls.getSchema();
        VectorSchemaRoot root = VectorSchemaRoot.create(new Schema(schema.getFields().stream().map(Layout::toOwn).toList(), schema.getCustomMetadata()), allocator);
        try {
            move(calls, root);
        } catch (Values.Misfit cause) {
            root.close();
            throw CallError.violation("the arguments cannot be read: " + cause.getMessage());
        } catch (RuntimeException cause) {
            root.close();
            throw cause;
        }
        return root;
    }

    /** Moves a batch to one with the same columns in another layout. */
    static void move(VectorSchemaRoot from, VectorSchemaRoot to) {
        for (int column = 0; column < from.getFieldVectors().size(); column++) {
            FieldVector source = plain(from.getVector(column));
            FieldVector target = plain(to.getVector(column));
            if (isSame(from.getVector(column).getField(), to.getVector(column).getField())) {
                source.makeTransferPair(target).transfer();
                continue;
            }
            checkSize(source);
            target.allocateNew();
            for (int row = 0; row < source.getValueCount(); row++) copy(source, row, target, row);
            target.setValueCount(source.getValueCount());
        }
        to.setRowCount(from.getRowCount());
    }

    /** The vector itself, without an extension type. */
    static FieldVector plain(FieldVector vector) {
        return vector instanceof ExtensionTypeVector<?> extension ? (FieldVector) extension.getUnderlyingVector() : vector;
    }

    private static boolean isSame(Field one, Field other) {
        if (!one.getType().equals(other.getType())) return false;
        for (int i = 0; i < one.getChildren().size(); i++) {
            if (!isSame(one.getChildren().get(i), other.getChildren().get(i))) return false;
        }
        return true;
    }

    /** Any number of views may stand for the same bytes: what they come to is bounded before it is copied. */
    private static void checkSize(FieldVector vector) {
        if (vector instanceof VariableWidthFieldVector values) {
            long size = 0;
            for (int row = 0; row < values.getValueCount(); row++) if (!values.isNull(row)) size += values.getValueLength(row);
            if (size > MAX_COLUMN_BYTES) throw new Values.Misfit("a column of " + size + " bytes");
        } else {
            vector.getChildrenFromFields().forEach(child -> checkSize(plain(child)));
        }
    }

    private static void copy(FieldVector from, int row, FieldVector to, int at) {
        if (from.isNull(row)) {
            setNull(to, at);
        } else if (from instanceof VariableWidthFieldVector values) {
            ((VariableWidthFieldVector) to).setSafe(at, values.get(row));
        } else if (from instanceof ListVector list) {
            copyElements(list.getDataVector(), list.getElementStartIndex(row), list.getElementEndIndex(row), to, at);
        } else if (from instanceof LargeListVector list) {
            copyElements(list.getDataVector(), list.getElementStartIndex(row), list.getElementEndIndex(row), to, at);
        } else if (from instanceof StructVector struct) {
            StructVector target = (StructVector) to;
            while (target.getValueCapacity() <= at) target.reAlloc();
            // Parts stand for attributes by their order.
            List<FieldVector> parts = struct.getChildrenFromFields();
            for (int i = 0; i < parts.size(); i++) copy(plain(parts.get(i)), row, plain(target.getChildrenFromFields().get(i)), at);
            target.setIndexDefined(at);
        } else {
            to.copyFromSafe(row, at, from);
        }
    }

    /** Readers look at views that are NULL, too, and at those of a composite value that is. */
    private static void setNull(FieldVector to, int at) {
        if (to instanceof BaseVariableWidthViewVector views) views.setSafe(at, new byte[0]);
        if (to instanceof StructVector struct) struct.getChildrenFromFields().forEach(part -> setNull(plain(part), at));
        to.setNull(at);
    }

    private static void copyElements(FieldVector elements, long start, long end, FieldVector to, int at) {
        int count = Math.toIntExact(end - start);
        int first;
        FieldVector copied;
        if (to instanceof ListVector list) {
            first = list.startNewValue(at);
            copied = list.getDataVector();
        } else {
            first = Math.toIntExact(((LargeListVector) to).startNewValue(at));
            copied = ((LargeListVector) to).getDataVector();
        }
        for (int i = 0; i < count; i++) {
            while (copied.getValueCapacity() <= first + i) copied.reAlloc();
            copy(plain(elements), Math.toIntExact(start + i), plain(copied), first + i);
        }
        if (to instanceof ListVector list) list.endValue(at, count);
        else ((LargeListVector) to).endValue(at, count);
    }
}
